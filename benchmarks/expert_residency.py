"""The simulator: what a trace costs with some of the experts in bays, by policy.

Nothing here is measured. ``DecayedCount`` does what the op ``fetch`` does, so on the same trace and
from the same placement it counts what the op counts (``tests/benchmarks/test_residency.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt
from expert_traces import Trace

from kinfolk.experts.placement import place_by_frequency
from kinfolk.plans import ExpertStats, Placement
from kinfolk_kernels.fetch.op import FetchArguments

Mask = npt.NDArray[np.bool_]
"""[layers, experts]."""
Numbers = npt.NDArray[np.int64]

DECAY = next(float(each.default) for each in fields(FetchArguments) if each.name == "decay")
"""That of the op ``fetch``."""

FETCHED_SHARE, PAIRS_SHARE, GROUPS_SHARE, LANDED_SHARE = 0.92, 0.85, 0.50, 0.90
"""Predicted rates as shares of one large copy: of fetching, of reading experts in place with few
rows and with the many of a prompt, and of copying them to landing bays."""

ROW_SECONDS, ROWS_SECONDS = 0.3e-6, 1.9e-6
"""Predicted for a layer that fetches nothing: in a step of one row, which has no launch for that,
and of several."""

_ID_BITS = 16
_LAST = np.iinfo(np.int64).max
_RANKS = 2**40


@dataclass
class Traffic:
    """The experts that layers of steps chose: near, fetched, and read far; ``swapped``: records
    that the host swapped in. All by layer. ``counted``: the engine counts them too."""

    hits: Numbers
    fetched: Numbers
    far: Numbers
    swapped: Numbers
    steps: int = 0
    rows: int = 0
    counted: bool = True

    @classmethod
    def none(cls, layers: int) -> Traffic:
        return cls(*(np.zeros(layers, np.int64) for _ in range(4)))

    def add(self, other: Traffic) -> None:
        for mine, more in zip(self.by_layer, other.by_layer, strict=True):
            mine += more
        self.steps += other.steps
        self.rows += other.rows

    @property
    def by_layer(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        return self.hits, self.fetched, self.far, self.swapped

    @property
    def totals(self) -> tuple[int, int, int]:
        """Hits, fetched and far of all layers, as the engine's counters have them."""
        return int(self.hits.sum()), int(self.fetched.sum()), int(self.far.sum())

    @property
    def hit_share(self) -> float:
        hits, fetched, far = self.totals
        return hits / max(1, hits + fetched + far)

    def missed_bytes(self, record: Numbers) -> tuple[int, int]:
        """Bytes that were copied to the device, and bytes that were read from host memory where
        they are, or landed; ``record``: bytes of a record by layer."""
        return int(((self.fetched + self.swapped) * record).sum()), int((self.far * record).sum())


def predicted_seconds(
    traffic: Traffic,
    record: Numbers,
    link: float,
    *,
    fetches: bool,
    read_share: float = PAIRS_SHARE,
) -> float:
    """What all steps take longer than with all experts near, by a link whose large copies take
    ``link`` bytes a second."""
    copied, read = traffic.missed_bytes(record)
    each = ROW_SECONDS if traffic.rows <= traffic.steps else ROWS_SECONDS
    idle = traffic.steps * len(record) * each if fetches else 0.0
    return copied / (FETCHED_SHARE * link) + read / (read_share * link) + idle


@dataclass
class Residency:
    """Which experts are ``near``; ``pinned`` ones stay. Without a policy all of them do."""

    near: Mask
    pinned: Mask

    @classmethod
    def of(cls, placement: Placement, experts: int) -> Residency:
        near, pinned = (np.zeros((len(placement.bays), experts), bool) for _ in range(2))
        kept = placement.pinned or (0,) * len(placement.bays)
        for layer, (bays, count) in enumerate(zip(placement.bays, kept, strict=True)):
            near[layer, list(bays)] = True
            pinned[layer, list(bays[:count])] = True
        return cls(near, pinned)


class Static:
    """Bays keep the experts that they begin with."""

    fetches = False

    def step(self, residency: Residency, used: Mask) -> Traffic:
        hits, zero = (used & residency.near).sum(1), np.zeros(len(used), np.int64)
        return Traffic(hits, zero, used.sum(1) - hits, zero)


class Fetching:
    """What a step misses takes the bays of experts that the step does not use, those of the least
    rank first, of equals the least id. A subclass says how experts rank."""

    fetches = True

    def ranks(self, used: Mask) -> Numbers:
        """The rank of each expert, at least 0, after a step that used these."""
        raise NotImplementedError

    def step(self, residency: Residency, used: Mask) -> Traffic:
        ranks = self.ranks(used)
        near = residency.near
        hits, missed = used & near, used & ~near
        misses = missed.sum(1)
        fetched = zero = np.zeros(len(used), np.int64)
        if misses.any():
            free = near & ~used & ~residency.pinned
            fetched = np.minimum(misses, free.sum(1))
            comes = missed
            if (fetched < misses).any():
                comes = first(_RANKS - ranks, missed, fetched)
            residency.near = (near & ~first(ranks, free, fetched)) | comes
        return Traffic(hits.sum(1), fetched, misses - fetched, zero)


class DecayedCount(Fetching):
    """The policy of the op ``fetch``: s = s * decay, + 1 for each expert that a step used. In
    float32, as there, so that rounding decides alike."""

    def __init__(self, decay: float) -> None:
        self._decay = np.float32(decay)
        self._score: npt.NDArray[np.float32] | None = None

    def ranks(self, used: Mask) -> Numbers:
        if self._score is None:
            self._score = np.zeros(used.shape, np.float32)
        self._score *= self._decay
        self._score += used
        # The bits of numbers that are not negative are ordered like the numbers.
        return self._score.view(np.int32).astype(np.int64)


class LeastRecentlyUsed(Fetching):
    """The expert leaves whose last use is the longest ago."""

    def __init__(self) -> None:
        self._now = 0
        self._used: Numbers | None = None

    def ranks(self, used: Mask) -> Numbers:
        if self._used is None:
            self._used = np.zeros(used.shape, np.int64)
        self._now += 1
        self._used[used] = self._now
        return self._used


@dataclass
class HostSwaps:
    """The host plans swaps by decayed counts; it knows what a step chose ``lag`` steps later. Then
    it brings in what that step used and is still far. What a step misses is read where it is."""

    lag: int
    count: DecayedCount
    fetches: bool = False
    _seen: list[Mask] = field(default_factory=list)

    def step(self, residency: Residency, used: Mask) -> Traffic:
        swapped = np.zeros(len(used), np.int64)
        if len(self._seen) == self.lag:
            seen = self._seen.pop(0)
            swapped = self.count.step(residency, seen).fetched
        traffic = replace(Static().step(residency, used), swapped=swapped)
        self._seen.append(used)
        return traffic


Policy = Static | Fetching | HostSwaps


def first(ranks: Numbers, among: Mask, count: Numbers) -> Mask:
    """The ``count`` experts of each layer ``among`` these with the least rank, of equals the least
    id."""
    chosen = np.zeros(among.shape, bool)
    most = int(count.max())
    if not most:
        return chosen
    keys = np.where(among, (ranks << _ID_BITS) | np.arange(among.shape[1]), _LAST)
    keys.sort(1)
    layer, place = np.nonzero(np.arange(most) < count[:, None])
    chosen[layer, keys[layer, place] & ((1 << _ID_BITS) - 1)] = True
    return chosen


def placement_for(
    budget: int, record: Numbers, experts: int, counts: npt.NDArray[np.int64] | None = None
) -> Placement:
    """Bays of ``budget`` bytes for layers with records of so many bytes, by the core's own rule."""
    layers = len(record)
    uses = None if counts is None else tuple(tuple(map(int, row)) for row in counts)
    stats = ExpertStats((experts,) * layers, uses, tuple(map(int, record)))
    return place_by_frequency(stats, budget)


def walk(
    trace: Trace,
    policy: Policy,
    residency: Residency,
    rows: Sequence[int] | None = None,
    most_rows: int | None = None,
) -> Iterator[Traffic]:
    """Run the steps of a trace, with ``rows`` as in :meth:`Trace.steps`, and count each.
    ``residency`` is changed. Steps of more than ``most_rows`` rows leave bays alone, as in the
    engine, which does not count them either."""
    layer, outside = np.arange(trace.layers)[:, None], Static()
    for ids in trace.steps(rows):
        used = np.zeros((trace.layers, trace.experts), bool)
        used[layer, ids.swapaxes(0, 1).reshape(trace.layers, -1)] = True
        alone = most_rows is not None and len(ids) > most_rows
        traffic = (outside if alone else policy).step(residency, used)
        traffic.steps, traffic.rows, traffic.counted = 1, len(ids), not alone
        yield traffic


def simulate(
    trace: Trace,
    policy: Policy,
    residency: Residency,
    rows: Sequence[int] | None = None,
    *,
    warm: int = 0,
    most_rows: int | None = None,
) -> Traffic:
    """What the engine counts of all steps behind the first ``warm`` ones, see :func:`walk`."""
    total = Traffic.none(trace.layers)
    for number, traffic in enumerate(walk(trace, policy, residency, rows, most_rows)):
        if number >= warm and traffic.counted:
            total.add(traffic)
    return total
