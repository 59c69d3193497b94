"""JSON encoding of responses."""

from __future__ import annotations

import json
from typing import Any, Final

# ``json.dumps`` makes an encoder in each call that has options.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_json(data: Any) -> bytes:
    """Compact JSON in UTF-8. Raises ``ValueError`` for NaN and infinity.

    A lone surrogate, which a client may send and an answer may repeat, becomes a question mark.
    """
    return _ENCODER.encode(data).encode("utf-8", "replace")
