"""Constants of step plans: integers, without torch."""

from __future__ import annotations

CHUNK_POSITIONS = 64
"""Logical positions in one chunk of a sequence, and rows in one block of a pool."""

DUMMY = 0
"""Slot 0 and block 0 receive the writes of padding rows; they are never given to a sequence."""

NO_PARENT = -1
"""Parent of a row that directly follows the committed context."""
