"""The trainer is no part of what is installed: its folder is found from here."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end, so that the installed package is imported and not the source tree's.
sys.path.append(str(Path(__file__).resolve().parents[2] / "plugins" / "qwen35"))
