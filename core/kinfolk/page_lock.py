"""Page-locking of host memory, so that CUDA devices read it by its address."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch


def page_lock(memory: torch.Tensor) -> None:
    """Lock the pages of ``memory``, for all CUDA devices. Pages that were touched before are locked
    faster. Raises :class:`RuntimeError` with the words of the driver."""
    driver = torch.cuda.cudart()
    error = driver.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(error):
        words = driver.cudaGetErrorString(error)
        raise RuntimeError(f"{words}, error {int(error)} of cudaHostRegister")


def page_unlock(memory: torch.Tensor) -> None:
    """Unlock what :func:`page_lock` has locked. No device may read it any more."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


def has_one_address(memory: torch.Tensor) -> bool:
    """Whether the current device finds locked ``memory`` at the host's address of it, as on most
    systems; true if the driver cannot be asked."""
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuMemHostGetDevicePointer_v2
    except (OSError, AttributeError):
        return True
    found = ctypes.c_uint64()
    error = ask(ctypes.byref(found), ctypes.c_void_p(memory.data_ptr()), ctypes.c_uint(0))
    return error != 0 or found.value == memory.data_ptr()


def forget_error(device: torch.device) -> None:
    """After an error in a thread that goes on to launch kernels: the runtime keeps the last error
    of each thread, and the next launch would report it as its own. So this one does."""
    with suppress(RuntimeError):
        torch.ones(1, device=device).add_(1)
