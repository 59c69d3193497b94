"""The contract of the hook ``score_chunks``: its argument and its answers.

A sequence may have more chunks than a pool has room for. Chunks with higher scores stay on the
device, or come back to it. C is the number of full chunks: 64 committed positions each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

ScoreReason = Literal["prompt", "interval", "prefix"]
"""Why chunks are selected: a prompt comes to its end, enough tokens were committed since the last
time, or a sequence has started from a stored prefix."""


class Keep(Enum):
    """The answer that residency stays as it is."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """Compressed keys of the full chunks of a sequence, on the device.

    ``codes`` uint8 and ``scales`` float16 are what op ``chunk_digest`` has written, for the chosen
    ``layers`` of the model: [places, layers, heads, 64, ...], with those of other sequences too.
    ``places`` int32 [C] has the place of each chunk, -1 = its keys are not there.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    places: torch.Tensor
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkQuery:
    """A sequence whose chunks are to be scored.

    ``tokens``: all that are known, prompt and answer. ``length``: committed positions. ``chunks``:
    C. ``resident`` bool [C]: which are on the device now. ``last_used`` int64 [C]: the committed
    length at which each was on the device last. ``queries`` [rows, layers, heads, dim]: those of
    the last rows that were kept, at most 8, in the order of their positions but for drafts, with
    the rotary embedding; and ``keys``. Both are on the device, and not to be changed or kept. They
    are ``None`` unless the core's scorer is ``qk`` or ``oracle`` (``--kvflash-policy``).
    """

    tokens: Sequence[int]
    length: int
    chunks: int
    resident: npt.NDArray[np.bool_]
    last_used: npt.NDArray[np.int64]
    reason: ScoreReason
    queries: torch.Tensor | None = None
    keys: ChunkKeys | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """``values`` float32 [C], on the device or the host; chunks with higher ones are kept.

    Raises :class:`ValueError` for a tensor of another type or shape; no number is read.
    """

    values: torch.Tensor

    def __post_init__(self) -> None:
        kind = str(getattr(self.values, "dtype", type(self.values).__name__))
        if kind != "torch.float32":
            raise ValueError(f"Scores.values is of {kind}; it must be a float32 tensor")
        if self.values.dim() != 1:
            raise ValueError(
                f"Scores.values is {list(self.values.shape)}; it must have one number a chunk"
            )
