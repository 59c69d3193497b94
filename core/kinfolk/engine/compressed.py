"""What a prompt says of its compression. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.compress.rules import SkipReason


@dataclass(frozen=True, slots=True)
class Compression:
    """``original`` and ``tokens`` are the lengths of the prompt in full and as it is read. It
    ``began`` at that time (``perf_counter``) and took ``seconds``. ``skipped``: why the prompt is
    read in full."""

    original: int
    tokens: int
    began: float
    seconds: float = 0.0
    skipped: SkipReason | None = None
