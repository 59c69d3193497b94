"""Traces: which experts the tokens of sequences choose, drawn or recorded from a model.

Three kinds are drawn. Of each, layers and sequences are drawn apart, and a token chooses ``top_k``
different experts of a layer:

uniform   every expert is as likely as every other
zipf      the n-th most used expert of a layer is chosen as 1 / n^1.16; tokens do not depend on one
          another
sticky    45 % of the choices were the last token's, 35 % more were among those of the last eight
          tokens, and the rest are new: every other expert is as likely as every other
          (``sticky-zipf``: as in zipf)
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

KINDS = ("uniform", "zipf", "sticky", "sticky-zipf")

ZIPF = 1.16
"""The exponent of popularity in a Zipf trace."""

WINDOW = 8
LAST, WITHIN = 0.45, 0.80
"""Shares of a sticky trace's choices that were the last token's, and among those of the last
``WINDOW`` tokens."""

BURN_IN = 64
"""Tokens that are drawn first and left out, as they have too few before them."""

TRACE_VERSION = 1

Ids = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Trace:
    """The choices ``ids`` uint16 [tokens, sequences, layers, top_k] of sequences that run side by
    side, in layers of ``experts`` experts each.

    As a stream, the trace is read token by token, and of each token sequence by sequence. A step of
    n rows takes the next n of the stream, so with one sequence a slice of a prompt, or a draft, is
    n tokens in a row. Behind the last token comes the first.
    """

    name: str
    experts: int
    ids: Ids

    @property
    def tokens(self) -> int:
        """Of each sequence."""
        return int(self.ids.shape[0])

    @property
    def sequences(self) -> int:
        return int(self.ids.shape[1])

    @property
    def layers(self) -> int:
        return int(self.ids.shape[2])

    @property
    def top_k(self) -> int:
        return int(self.ids.shape[3])

    @property
    def stream(self) -> Ids:
        """[tokens * sequences, layers, top_k]."""
        return self.ids.reshape(-1, self.layers, self.top_k)

    def steps(self, rows: Sequence[int] | None = None) -> Iterator[Ids]:
        """The choices [n, layers, top_k] of steps with n rows each; by default a row of every
        sequence for each token. A step that ends within a token passes over the rest of it."""
        stream, start = self.stream, 0
        for count in rows if rows is not None else (self.sequences,) * self.tokens:
            yield stream[(start * self.sequences + np.arange(count)) % len(stream)]
            start += -(-count // self.sequences)

    def counts(self) -> npt.NDArray[np.int64]:
        """How often each expert of a layer was chosen, [layers, experts]."""
        return np.stack(
            [
                np.bincount(self.ids[:, :, layer].ravel(), minlength=self.experts)
                for layer in range(self.layers)
            ]
        )

    def reuse(self, window: int) -> float:
        """The share of choices that are among those of the ``window`` tokens of the sequence before
        theirs; the first ``WINDOW`` tokens are not counted."""
        found = np.zeros(self.ids[WINDOW:].shape, bool)
        for back in range(1, window + 1):
            before = self.ids[WINDOW - back : len(self.ids) - back]
            found |= (self.ids[WINDOW:, ..., :, None] == before[..., None, :]).any(-1)
        return float(found.mean())

    def busiest(self, share: float) -> float:
        """The share of choices that fall on this share of the experts of each layer, the most used
        ones."""
        ranked = np.sort(self.counts(), 1)[:, ::-1]
        return float(ranked[:, : round(share * self.experts)].sum() / ranked.sum())

    def split(self, sequences: int) -> Trace:
        """The trace of one sequence cut into so many, as if its parts ran side by side."""
        if sequences == self.sequences:
            return self
        if self.sequences != 1 or self.tokens // sequences <= WINDOW:
            raise ValueError(
                f"trace {self.name}: {self.tokens} tokens of {self.sequences} sequences cannot be "
                f"cut into {sequences} with more than {WINDOW} tokens each"
            )
        tokens = self.tokens // sequences
        parts = self.ids[: tokens * sequences, 0].reshape(sequences, tokens, *self.ids.shape[2:])
        return Trace(self.name, self.experts, np.ascontiguousarray(parts.swapaxes(0, 1)))

    def save(self, path: Path) -> None:
        """Write a file of NumPy arrays, which :func:`load` reads."""
        np.savez_compressed(
            path,
            version=TRACE_VERSION,
            name=self.name,
            experts=self.experts,
            ids=self.ids,
        )


def load(path: Path) -> Trace:
    """The trace in a file. Raises :class:`ValueError`, naming the array, for what is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"trace {path} cannot be read: {error}") from error
    missing = {"version", "name", "experts", "ids"} - arrays.keys()
    if missing:
        raise ValueError(f"trace {path} lacks {', '.join(sorted(missing))}: record it again")
    version, experts, ids = int(arrays["version"]), int(arrays["experts"]), arrays["ids"]
    if version != TRACE_VERSION:
        raise ValueError(f"trace {path} has version {version}, this script reads {TRACE_VERSION}")
    if ids.dtype != np.uint16 or ids.ndim != 4 or 0 in ids.shape:
        raise ValueError(f"trace {path}: ids are {ids.dtype} {list(ids.shape)}, not uint16 with 4 "
                         "dimensions: tokens, sequences, layers, choices")  # fmt: skip
    if int(ids.max()) >= experts:
        raise ValueError(f"trace {path}: ids name expert {ids.max()} of {experts}")
    ordered = np.sort(ids, -1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise ValueError(f"trace {path}: ids name an expert twice for one token")
    return Trace(str(arrays["name"]), experts, ids)


def load_or_draw(
    name: str,
    tokens: int,
    *,
    layers: int,
    experts: int,
    top_k: int,
    sequences: int = 1,
    seed: int = 0,
) -> Trace:
    """A drawn trace of the kind of this name, or the one in a file, whose sizes are its own, for so
    many sequences."""
    if name not in KINDS:
        return load(Path(name)).split(sequences)
    sizes = {"layers": layers, "experts": experts, "top_k": top_k}
    return draw(name, tokens, sequences=sequences, seed=seed, **sizes)


def draw(
    kind: str,
    tokens: int,
    *,
    layers: int,
    experts: int,
    top_k: int,
    sequences: int = 1,
    seed: int = 0,
) -> Trace:
    """A trace of one of ``KINDS``. The popularity of experts, where it differs, is that of the
    layer: the same for all sequences. Raises :class:`ValueError` for sizes that do not go."""
    if kind not in KINDS:
        raise ValueError(f"no kind of trace is named {kind!r}: {', '.join(KINDS)}, or a file")
    if not 1 <= top_k <= experts:
        raise ValueError(f"a token cannot choose {top_k} of {experts} experts")
    source = np.random.default_rng(seed)
    popularity = np.zeros((layers, experts))
    if kind.endswith("zipf"):
        for row in popularity:
            row[source.permutation(experts)] = -ZIPF * np.log(np.arange(1, experts + 1))
    size = (sequences, layers, experts)
    if not kind.startswith("sticky"):
        ids = (_best(popularity + source.gumbel(size=size), top_k) for _ in range(tokens))
        return Trace(kind, experts, np.stack(list(ids)))
    age = np.full(size, WINDOW + 1)
    drawn = [_next_sticky(age, popularity, top_k, source) for _ in range(BURN_IN + tokens)]
    return Trace(kind, experts, np.stack(drawn[BURN_IN:]))


def _best(keys: npt.NDArray[np.float64], top_k: int) -> Ids:
    """The places of the ``top_k`` largest keys [..., experts], the largest first."""
    most = np.argpartition(-keys, top_k - 1, -1)[..., :top_k]
    order = np.argsort(-np.take_along_axis(keys, most, -1), -1)
    return np.take_along_axis(most, order, -1).astype(np.uint16)


def _next_sticky(
    age: npt.NDArray[np.int64],
    popularity: npt.NDArray[np.float64],
    top_k: int,
    source: np.random.Generator,
) -> Ids:
    """The choices of the next token. ``age`` [sequences, layers, experts]: how many tokens ago each
    expert was chosen last; it is brought up to date."""
    last, old = age == 1, age > WINDOW
    some = last.sum(-1), (~last & ~old).sum(-1), old.sum(-1)
    from_last = np.minimum(source.binomial(top_k, LAST, some[0].shape), some[0])
    share = (WITHIN - LAST) / (1 - LAST)
    from_window = np.minimum(source.binomial(top_k - from_last, share), some[1])
    new = np.minimum(top_k - from_last - from_window, some[2])
    # Layers of few experts may have none that are new.
    from_window = np.minimum(top_k - from_last - new, some[1])
    from_last = top_k - from_window - new
    # In groups: the last token's, the window's, all others, each in the order of their draws.
    draws = source.gumbel(size=age.shape) + np.where(old, popularity, 0.0)
    order = np.argsort(np.where(last, 0.0, np.where(old, 2e6, 1e6)) - draws, -1)
    place = np.arange(age.shape[-1])
    taken = np.zeros(age.shape, bool)
    starts = np.zeros_like(some[0]), some[0], some[0] + some[1]
    for start, count in zip(starts, (from_last, from_window, new), strict=True):
        taken |= (place >= start[..., None]) & (place < (start + count)[..., None])
    ids = order[taken].reshape(*age.shape[:-1], top_k)
    age += 1
    np.put_along_axis(age, ids, 1, -1)
    return ids.astype(np.uint16)
