"""How many chunks positions occupy, and how many of them a pool's window keeps. Torch-free."""

from __future__ import annotations

from kinfolk.types import CHUNK_POSITIONS


def chunks_for(positions: int) -> int:
    """Chunks that ``positions`` positions from 0 occupy."""
    return -(-positions // CHUNK_POSITIONS)


def blocks_for_sequence(
    window: int | None, positions: int, step_rows: int, resident: int | None = None
) -> int:
    """Blocks of a pool that a sequence of ``positions`` positions may hold at once.

    In a windowed pool the rows of a step stand before and behind the window, and both ends of that
    range may lie inside a chunk. A paged sequence holds at most ``resident`` blocks of full
    attention.
    """
    if window is None:
        return chunks_for(positions) if resident is None else min(chunks_for(positions), resident)
    return min(chunks_for(positions), chunks_for(window + step_rows - 1) + 2)


def first_visible_chunk(window: int | None, position: int) -> int:
    """The first chunk that the row at ``position`` attends to."""
    return 0 if window is None else max(0, position - window + 1) // CHUNK_POSITIONS


def visible_chunks(window: int | None, position: int) -> range:
    """Chunks with positions below ``position`` that the row at ``position`` attends to."""
    return range(first_visible_chunk(window, position), chunks_for(position))
