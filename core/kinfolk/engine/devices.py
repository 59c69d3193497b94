"""Whether a device is there, as far as that is known without torch, which takes seconds to load."""

from __future__ import annotations

import ctypes
from importlib import metadata
from pathlib import Path
from typing import Final

from kinfolk.errors import SettingsError

_DRIVER: Final = "libcuda.so.1"
_OTHER_DRIVER: Final = Path("/dev/kfd")
"""There with AMD's driver, whose devices torch calls ``cuda`` too."""


def refuse_missing_device(name: str) -> None:
    """Raise :class:`SettingsError` for a ``--device`` that is surely not there.

    What cannot be told without torch is left to :func:`kinfolk.engine.preparing.choose_device`.
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
    """What is said of a CUDA device beyond the ``count`` that are there."""
    there = f": cuda:0 to cuda:{count - 1}" if count > 1 else ""
    return SettingsError(f"--device {name}: this machine has {count} CUDA devices{there}")


def _version_of_torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:  # built from source and found by its path alone
        return ""


def _cuda_devices() -> int | None:
    """How many devices NVIDIA's driver has; ``None`` if it cannot say."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return None if _OTHER_DRIVER.exists() else 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return None
    return count.value
