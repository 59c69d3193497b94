"""Makes the trainer importable: a folder of scripts that is part of no wheel."""

from __future__ import annotations

import sys
from pathlib import Path

# Last, so that an installed family is never shadowed by the one of this tree.
sys.path.append(str(Path(__file__).resolve().parents[2] / "plugins" / "qwen35"))
