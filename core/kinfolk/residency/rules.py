"""How many chunks of a sequence are on the device, and what for. Torch-free."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from kinfolk.errors import SettingsError
from kinfolk.types import CHUNK_POSITIONS

SLICE_CHUNKS = 1
"""Chunks of a prompt that are read at once at least."""

STEP_CHUNKS = 1
"""A step of decoding may write one chunk behind that of its first row."""


@dataclass(frozen=True, slots=True)
class ResidencyRules:
    """The budget of every sequence that is longer, in chunks of full attention.

    chunks  on the device at most, all below included
    sink    the first ones, which stay
    tail    the last ones, which stay
    burst   spare blocks, into which chunks are loaded while others are still in their places: the
            most exchanges of a selection
    tau     committed tokens between two selections
    scorers who is asked for scores; without any, the last chunks are kept
    previews whether the last rows of a prompt run before they are read, for their queries
    layers  whose attention scores, without an answer of a plugin
    drafter the hash of the file of the model that scores, "" = no other model does
    """

    chunks: int
    sink: int = 1
    tail: int = 4
    burst: int = 32
    tau: int = 64
    scorers: tuple[str, ...] = ()
    previews: bool = False
    layers: tuple[int, ...] = ()
    drafter: str = ""

    def __post_init__(self) -> None:
        least = least_chunks(self.sink, self.tail, self.burst)
        if self.chunks < least:
            raise SettingsError(
                f"a budget of {self.chunks * CHUNK_POSITIONS} tokens is too small: "
                f"{self.sink} chunks at the start, {self.tail} at the end, {self.burst} to "
                f"exchange (--kvflash-burst), {SLICE_CHUNKS} for a slice of the prompt and "
                f"{STEP_CHUNKS} for a step make {least} chunks of {CHUNK_POSITIONS} tokens = "
                f"{least * CHUNK_POSITIONS}",
                field="kvflash",
            )
        if self.tau < 1:
            raise SettingsError(f"kvflash_tau must be at least 1, got {self.tau}")

    @property
    def salt(self) -> str:
        """All of this as JSON: only where it is the same, a sequence sees and scores the same."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def scored(self) -> bool:
        """Whether scores are asked for."""
        return bool(self.scorers)

    @property
    def decoding(self) -> int:
        """Chunks of a sequence that decodes, without those that drafted rows have begun."""
        return self.chunks - self.burst - STEP_CHUNKS

    @property
    def reading(self) -> int:
        """Chunks of a sequence whose prompt is read."""
        return self.chunks - self.burst

    def slice_rows(self, most: int) -> int:
        """Tokens of a prompt that are read at once, at most ``most``."""
        return min(most, (self.reading - self.sink - self.tail) * CHUNK_POSITIONS)


def least_chunks(sink: int, tail: int, burst: int) -> int:
    """The smallest budget."""
    return sink + tail + burst + SLICE_CHUNKS + STEP_CHUNKS
