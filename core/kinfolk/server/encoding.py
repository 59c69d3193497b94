"""Plain data to bytes."""

from __future__ import annotations

import json
from typing import Any


def encode_json(data: Any) -> bytes:
    """Compact JSON in UTF-8. NaN and infinity are no JSON and raise ``ValueError``.

    A lone surrogate in what a client sent must not break the answer that repeats it: it becomes
    a question mark.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
