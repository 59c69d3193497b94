"""JSON encoding of responses."""

from __future__ import annotations

import json
from typing import Any


def encode_json(data: Any) -> bytes:
    """Compact JSON in UTF-8. Raises ``ValueError`` for NaN and infinity.

    A lone surrogate, which a client may send and an answer may repeat, becomes a question mark.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
