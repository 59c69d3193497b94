"""Checks whether a device exists without importing torch, which takes seconds."""

from __future__ import annotations

import ctypes
from importlib import metadata
from pathlib import Path
from typing import Final

from kinfolk.errors import SettingsError

_DRIVER: Final = "libcuda.so.1"
_OTHER_DRIVER: Final = Path("/dev/kfd")
"""Exists with AMD's driver, whose devices torch calls ``cuda`` too."""


def refuse_missing_device(name: str) -> None:
    """Raise :class:`SettingsError` for a ``--device`` that certainly does not exist.

    Cases that need torch are left to :func:`kinfolk.engine.preparing.choose_device`.
    """
    kind, _, index = name.partition(":")
    if kind != "cuda":
        return
    built = _version_of_torch()
    if built.endswith("+cpu"):
        raise SettingsError(
            f"--device {name}: torch {built} is a build for CPUs; a GPU needs one for CUDA"
        )
    count = _cuda_devices()
    if count is not None and int(index or 0) >= count:
        raise missing_device(name, count)


def missing_device(name: str, count: int) -> SettingsError:
    """The error for the CUDA device ``name`` of a machine with ``count`` of them."""
    there = f": cuda:0 to cuda:{count - 1}" if count > 1 else ""
    return SettingsError(f"--device {name}: this machine has {count} CUDA devices{there}")


def _version_of_torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:  # built from source and found by its path alone
        return ""


def _cuda_devices() -> int | None:
    """The number of devices of NVIDIA's driver; ``None`` if the driver reports an error."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return None if _OTHER_DRIVER.exists() else 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return None
    return count.value
