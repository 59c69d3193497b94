"""Counters of experts: they come to the host beside the outputs of a step, without a wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kinfolk.experts.cache import ExpertCache
from kinfolk.plans import ExpertResidency, ExpertUse

REPORT_STEPS = 64
"""Launches between two reports."""

Counts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Counted:
    """Counts since the model was opened, and the experts in bays, by layer of the model."""

    launches: int
    uses: Counts
    traffic: tuple[tuple[int, int, int], ...]
    bays: Counts


class ExpertReports:
    """The counters of a model's experts as the host has last seen them.

    Every 64 launches they are copied into pinned memory on the stream of the steps, before the
    outputs of a step. Whoever has waited for these outputs may read the report. ``layers``: layers
    of the model, those without experts too. ``counted``: steps count at all.
    """

    def __init__(self, cache: ExpertCache, layers: int, *, counted: bool = True) -> None:
        self._cache, self._layers, self._counted = cache, layers, counted
        pinned = cache.device.type == "cuda"
        self._copies = [
            torch.zeros(each.shape, dtype=each.dtype, pin_memory=pinned)
            for each in (cache.counts, cache.owners)
        ]
        self._launches = 0
        self._sent = 0
        self._known = self._taken = self._read(cache.counts.tolist(), cache.owners.tolist())

    def launch(self) -> bool:
        """Called at each launch, before its outputs are copied; whether a report goes with them."""
        self._launches += 1
        if self._launches % REPORT_STEPS:
            return False
        self._sent = self._launches
        for copy, source in zip(
            self._copies, (self._cache.counts, self._cache.owners), strict=True
        ):
            copy.copy_(source, non_blocking=True)
        return True

    @property
    def old(self) -> bool:
        """Whether steps were launched since the last report."""
        return self._counted and self._sent != self._launches

    def receive(self) -> None:
        """The outputs that a report went with are there."""
        counts, owners = (copy.tolist() for copy in self._copies)
        self._known = self._read(counts, owners)

    def refresh(self) -> None:
        """Read the counters now, which waits for the device."""
        self._sent = self._launches
        self._known = self._read(self._cache.counts.tolist(), self._cache.owners.tolist())

    def take(self) -> tuple[ExpertUse, ExpertResidency] | None:
        """What rows chose since the last call, and what is in bays; ``None`` if no report came."""
        now, before = self._known, self._taken
        if now is before:
            return None
        self._taken = now
        uses = tuple(map(_difference, now.uses, before.uses))
        traffic = tuple(map(_difference, now.traffic, before.traffic))
        use = ExpertUse(now.launches - before.launches, uses, traffic)  # type: ignore[arg-type]
        cached = self._cache.layers
        indices = range(self._layers)
        residency = ExpertResidency(
            tuple(cached[i].count if i in cached else 0 for i in indices),
            now.bays,
            tuple(cached[i].pinned if i in cached else 0 for i in indices),
            tuple(cached[i].layout.nbytes if i in cached else 0 for i in indices),
        )
        return use, residency

    @property
    def uses(self) -> dict[int, tuple[int, ...]]:
        """By layer with experts, how often rows have chosen each; empty if nothing counts."""
        layers = self._cache.layers if self._counted else ()
        return {layer: self._known.uses[layer] for layer in layers}

    def stats(self) -> dict[str, int]:
        """``expert_hits``, ``expert_fetched`` and ``expert_far`` count the experts that a layer of
        a step chose: near, fetched, or read from host memory. Where nothing counts, they and
        ``expert_uses`` are absent."""
        sizes = {
            "expert_bays": sum(layer.bays for layer in self._cache.layers.values()),
            "expert_device_bytes": self._cache.device_bytes,
            "expert_host_bytes": self._cache.host_bytes,
        }
        if not self._counted:
            return sizes
        hits, fetched, far = (sum(each[kind] for each in self._known.traffic) for kind in range(3))
        return {
            **sizes,
            "expert_uses": sum(map(sum, self._known.uses)),
            "expert_hits": hits,
            "expert_fetched": fetched,
            "expert_far": far,
        }

    def _read(self, counts: Sequence[int], owners: Sequence[int]) -> _Counted:
        """Numbers in the order of the layers in the cache, see :class:`ExpertCache`."""
        uses: list[tuple[int, ...]] = [()] * self._layers
        traffic: list[tuple[int, int, int]] = [(0, 0, 0)] * self._layers
        bays: list[tuple[int, ...]] = [()] * self._layers
        start = bay = 0
        for layer, each in self._cache.layers.items():
            uses[layer] = tuple(counts[start : start + each.count])
            bays[layer] = tuple(owners[bay : bay + each.bays])
            start, bay = start + each.count, bay + each.bays
        for layer in self._cache.layers:
            hits, fetched, far = counts[start : start + 3]
            traffic[layer] = hits, fetched, far
            start += 3
        return _Counted(self._sent, tuple(uses), tuple(traffic), tuple(bays))


def _difference(now: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(now, before, strict=True))
