"""Constants of step plans, and names that several layers use; without torch."""

from __future__ import annotations

from typing import Literal

CHUNK_POSITIONS = 64
"""Logical positions in one chunk of a sequence, and rows in one block of a pool."""

DUMMY = 0
"""Slot 0 and block 0 receive the writes of padding rows; they are never given to a sequence."""

NO_PARENT = -1
"""Parent of a row that directly follows the committed context."""

Parkable = Literal["all", "target", "draft"]
"""What can be parked: the model with its state, its drafter, or both."""
