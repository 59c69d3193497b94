"""Counters of experts: they come to the host beside the outputs of a step, without a wait."""

from __future__ import annotations

from kinfolk.experts.residency import ExpertResidency

REPORT_STEPS = 64
"""Launches between two reports."""


class ExpertReports:
    """The counters of a model's experts as the host has last seen them.

    Every 64 launches they are copied into pinned memory on the stream of the steps, before the
    outputs of a step. Whoever has waited for these outputs may read the report.
    """

    def __init__(self, residency: ExpertResidency) -> None:
        self._residency = residency
        counts = residency.counts
        self._copy = counts.new_zeros(
            counts.shape, device="cpu", pin_memory=counts.device.type == "cuda"
        )
        self._launches = 0
        self._known = self._copy.tolist()

    def launch(self) -> bool:
        """Called at each launch, before its outputs are copied; whether a report goes with them."""
        self._launches += 1
        if self._launches % REPORT_STEPS:
            return False
        self._copy.copy_(self._residency.counts, non_blocking=True)
        return True

    def receive(self) -> None:
        """The outputs that a report went with are there."""
        self._known = self._copy.tolist()

    def refresh(self) -> None:
        """Read the counters now, which waits for the device."""
        self._known = self._residency.counts.tolist()

    @property
    def uses(self) -> dict[int, tuple[int, ...]]:
        """By layer, how often rows have chosen each expert."""
        uses, _ = self._residency.read(self._known)
        return dict(zip(self._residency.layers, uses, strict=True))

    def stats(self) -> dict[str, int]:
        """``expert_hits``, ``expert_fetched`` and ``expert_far`` count the experts that a layer of
        a step chose: near, fetched, or read from host memory."""
        uses, (hits, fetched, far) = self._residency.read(self._known)
        return {
            "expert_bays": sum(layer.bays for layer in self._residency.layers.values()),
            "expert_device_bytes": self._residency.device_bytes,
            "expert_host_bytes": self._residency.host_bytes,
            "expert_uses": sum(map(sum, uses)),
            "expert_hits": hits,
            "expert_fetched": fetched,
            "expert_far": far,
        }
