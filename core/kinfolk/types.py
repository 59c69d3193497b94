"""Names for the integers that travel through plans. No torch here."""

from __future__ import annotations

from typing import NewType

TokenId = NewType("TokenId", int)
RequestId = NewType("RequestId", str)

CHUNK = 64
"""Logical positions in one chunk of a sequence, and rows in one block of a pool."""

DUMMY = 0
"""Slot and block 0 belong to padding rows; they are never handed out."""

NO_PARENT = -1
"""Parent of a row whose predecessor is the committed context."""
