"""What of a running engine does not change while it serves; imports no torch."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch import device as Device

    from kinfolk.engine.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """``device`` in words; ``drafters`` by name, in the order in which they are asked. Of stored
    prefixes the device keeps at most ``device_prefixes``, host memory ``host_bytes`` and the disk
    ``disk_bytes`` (0 = that place is not used)."""

    device: str
    slots: int
    drafters: tuple[str, ...] = ()
    device_prefixes: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0

    @classmethod
    def of(cls, loaded: LoadedModel, disk_bytes: int) -> Self:
        """Those of an engine that runs a model."""
        limits = loaded.limits
        return cls(
            device_in_words(loaded.device),
            limits.slots,
            tuple(str(row["name"]) for row in loaded.drafters.report()),
            limits.checkpoints,
            limits.host_bytes or 0,
            disk_bytes,
        )


def device_in_words(device: Device) -> str:
    """``cuda:0 (NVIDIA H100 80GB HBM3)``, ``cpu (x86_64)``."""
    if device.type != "cuda":
        return f"{device} ({platform.machine() or 'unknown'})"
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"
