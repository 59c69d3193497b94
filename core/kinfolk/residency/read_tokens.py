"""The tokens of a sequence as a second model reads them, to score the sequence's chunks.

If both models have the same tokens, the second one reads the ids. Else it reads the text, encoded
by its own tokenizer; ids are never mapped to others. Torch-free.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kinfolk.text.tokenizer import Tokenizer
from kinfolk.types import CHUNK_POSITIONS

TokenScores = npt.NDArray[np.float32]


class ReadTokens(Protocol):
    """``ids`` are those of the second model for the first ``count`` tokens of the sequence."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def count(self) -> int: ...

    def extend(self, tokens: Sequence[int]) -> None:
        """The sequence has more tokens. Raises :class:`ValueError` for those that the second model
        cannot read."""

    def chunk_scores(self, scores: TokenScores, chunks: int) -> tuple[float, ...]:
        """The mean score of the tokens of each of the first ``chunks`` chunks of the sequence, from
        one score for each of ``ids``; 0 for a chunk that has none."""


StartReading = Callable[[], ReadTokens]
"""Makes the tokens of a sequence that has none yet."""


class SameTokens:
    """Of two models with the same tokens. ``vocabulary``: what the second one reads is below."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._ids: list[int] = []

    @property
    def ids(self) -> Sequence[int]:
        return self._ids

    @property
    def count(self) -> int:
        return len(self._ids)

    def extend(self, tokens: Sequence[int]) -> None:
        if tokens and max(tokens) >= self._vocabulary:
            raise ValueError(
                f"token {max(tokens)} is outside of the vocabulary of {self._vocabulary} tokens of "
                "the model that reads"
            )
        self._ids += tokens

    def chunk_scores(self, scores: TokenScores, chunks: int) -> tuple[float, ...]:
        of_chunks = scores[: chunks * CHUNK_POSITIONS].reshape(chunks, CHUNK_POSITIONS)
        return tuple(of_chunks.mean(1, np.float64).tolist())


class TokensThroughText:
    """Of two models with different tokens: what is added at once is encoded by itself, so that no
    token that was read changes. A token belongs to the chunk in whose text its middle is."""

    def __init__(self, tokenizer: Tokenizer, reader: Tokenizer) -> None:
        self._tokenizer, self._reader = tokenizer, reader
        # A token may end within a character: its bytes wait for the next one.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._before: int | None = None
        self._count = 0
        self._length = 0  # bytes of the text that was decoded
        self._begun = 0  # bytes of the text that was encoded
        self._ends: list[int] = []  # where the text of each full chunk ends
        self._ids: list[int] = []
        self._chunk_of: list[int] = []

    @property
    def ids(self) -> Sequence[int]:
        return self._ids

    @property
    def count(self) -> int:
        return self._count

    def extend(self, tokens: Sequence[int]) -> None:
        text = "".join(map(self._spelled, tokens))
        if not text:
            return
        first = not self._ids
        ids = self._reader.encode(text, add_bos=None if first else False)
        lengths = self._lengths(ids, len(text.encode()), bos=first)
        ends = self._begun + np.cumsum(lengths)
        middles = ends - np.asarray(lengths) / 2
        self._chunk_of += np.searchsorted(self._ends, middles, side="right").tolist()
        self._ids += ids
        self._begun = self._length

    def chunk_scores(self, scores: TokenScores, chunks: int) -> tuple[float, ...]:
        owners = np.asarray(self._chunk_of, np.int64)
        inside = owners < chunks
        sums = np.bincount(owners[inside], scores[inside].astype(np.float64), chunks)
        counts = np.bincount(owners[inside], minlength=chunks)
        return tuple((sums / np.maximum(counts, 1)).tolist())

    def _spelled(self, token: int) -> str:
        """What a token adds to the text."""
        start = self._before is None
        raw = self._tokenizer.bytes_after(self._before, token)
        if start and self._tokenizer.adds_bos and token == self._tokenizer.bos:
            raw = b""  # the other tokenizer has its own
        self._before = token
        text = self._decoder.decode(raw)
        self._length += len(text.encode())
        self._count += 1
        if self._count % CHUNK_POSITIONS == 0:
            self._ends.append(self._length)
        return text

    def _lengths(self, ids: Sequence[int], nbytes: int, *, bos: bool) -> list[int]:
        """The bytes of each token of a text of ``nbytes``."""
        lengths, before = [], None
        for token in ids:
            lengths.append(len(self._reader.bytes_after(before, token)))
            before = token
        if bos and lengths and ids[0] == self._reader.bos and sum(lengths) == nbytes + lengths[0]:
            lengths[0] = 0  # the tokenizer has added it
        if sum(lengths) != nbytes:
            raise ValueError(f"the tokens spell {sum(lengths)} bytes of a text of {nbytes}")
        return lengths
