"""What of a running engine does not change while it serves; imports no torch."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import device as Device


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


def device_in_words(device: Device) -> str:
    """``cuda:0 (NVIDIA H100 80GB HBM3)``, ``cpu (x86_64)``."""
    if device.type != "cuda":
        return f"{device} ({platform.machine() or 'unknown'})"
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"
