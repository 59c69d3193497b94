"""Kernels in CUDA C++, compiled at run time by NVRTC, the compiler library that torch brings.

Triton kernels are the rule; this is for kernels that Triton cannot express. Compiled code is kept
in Triton's cache directory, and ``compiled_only`` compiles it in parallel, like a ``Launch``'s.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kinfolk_kernels import launch as launches

CAPABILITY = (9, 0)
"""The compute capability that the sources are written for: its instructions and shared memory."""

LEAST_MULTIPROCESSORS = 64
"""A program may wait for another one of its launch, so both must run at the same time, each on a
multiprocessor of its own. A part of a device (MIG) may have too few."""

MAX_SHARED = 227 * 1024
"""Bytes of shared memory that a program may use there."""

_OPTIONS = (
    "--gpu-architecture=sm_90a",
    "--std=c++17",
    # NVRTC 12 takes a lambda in a function of the device for one of the host without this.
    "--device-as-default-execution-space",
)

_CUBIN = "kernel.cubin"
_MAX_DYNAMIC_SHARED = 8
_PROGRAMMATIC_LAUNCH = 6


@dataclass(frozen=True, slots=True)
class CudaSource:
    """A file of CUDA C++ with an ``extern "C"`` kernel, and the macros it is compiled with."""

    path: Path
    kernel: str
    defines: tuple[tuple[str, int], ...]

    @staticmethod
    def make(path: Path, kernel: str, defines: Mapping[str, int]) -> CudaSource:
        return CudaSource(path, kernel, tuple(defines.items()))

    def text(self) -> str:
        """The file, with the files that it includes by their paths from its folder."""
        return _text_of(self.path)

    def compiled(self) -> bytes:
        """Its machine code. Raises ``OSError`` if there is no NVRTC, and ``RuntimeError`` with the
        compiler's words if it refuses the source."""
        macros = [f"-D{name}={value}" for name, value in self.defines]
        return _compile(self.text(), self.path.name, [*_OPTIONS, *macros])


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """A launch of a kernel in CUDA C++. ``arguments``: structures and numbers of ``ctypes`` in
    order; ``keep``: the tensors whose memory they name.

    The kernel waits for the launches before it on every path, and may start before they have ended,
    see ``dependent``.
    """

    source: CudaSource
    grid: int
    threads: int
    shared: int
    arguments: tuple[Any, ...]
    device: torch.device
    keep: tuple[Any, ...]

    def run(self) -> None:
        key = (self.source, self.shared, self.device)
        pending = launches.pending_kernels()
        if pending is not None:
            if key not in _LOADED and key not in pending:
                pending[key] = _Compiling.begin(key)
            return
        function = _LOADED.get(key)
        if function is None:
            function = _load(key, _cached(self.source))
        _launch(self, function)


class _Compiling:
    """Machine code that a thread is compiling; ``result`` loads it on the device."""

    def __init__(self, key: _Key, future: Future[bytes]) -> None:
        self.key, self.future = key, future

    @staticmethod
    def begin(key: _Key) -> _Compiling:
        threads = launches.compilers_of()
        if threads is not None:
            return _Compiling(key, threads.submit(_cached, key[0]))
        done: Future[bytes] = Future()
        done.set_result(_cached(key[0]))
        return _Compiling(key, done)

    def result(self) -> _Compiling:
        _load(self.key, self.future.result())
        return self

    @property
    def run(self) -> None:
        """Loaded by ``result``; Triton's kernels load when they are asked for this."""


_Key = tuple[CudaSource, int, torch.device]
_LOADED: dict[_Key, ctypes.c_void_p] = {}
"""Functions of the driver; their modules stay loaded as long as the process lives."""


def unavailable(device: torch.device) -> str:
    """The reason why sources cannot be compiled for ``device``; empty if they can."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "CUDA sources need an NVIDIA device"
    return _unavailable(device.index)


@cache
def _unavailable(index: int | None) -> str:
    if torch.cuda.get_device_capability(index) != CAPABILITY:
        return f"CUDA sources are written for devices of compute capability {CAPABILITY}"
    count = torch.cuda.get_device_properties(index).multi_processor_count
    if count < LEAST_MULTIPROCESSORS:
        return f"programs wait for each other; {count} multiprocessors may be too few for them"
    try:
        _nvrtc()
    except OSError as error:
        return f"NVRTC, a part of CUDA builds of torch, was not found: {error}"
    return ""


# -- compiling ------------------------------------------------------------------------------------


@cache
def _nvrtc() -> ctypes.CDLL:
    """The library of torch's version of CUDA, or the newest that is installed."""
    major = (torch.version.cuda or "").split(".")[0]
    names = [f"libnvrtc.so.{major}"] if major else []
    names += [str(path) for path in sorted(Path(torch.__file__).parents[1].glob(_WHEEL))[::-1]]
    reason = OSError("torch is built without CUDA")
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reason = error
    raise reason


_WHEEL = "nvidia/*/lib/libnvrtc.so.*"
"""Where the wheels of NVRTC put it, beside torch."""


@cache
def _text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda line: _text_of(path.parent / line[1]), text)


_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def _compile(text: str, name: str, options: list[str]) -> bytes:
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    _nvrtc_ok(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    )
    try:
        words = [option.encode() for option in options]
        array = (ctypes.c_char_p * len(words))(*words)
        # The library is thread-safe, and ctypes gives up Python's lock meanwhile.
        if nvrtc.nvrtcCompileProgram(program, len(words), array):
            said = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise RuntimeError(f"{name}, {' '.join(options)}:\n{said.decode(errors='replace')}")
        return _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _nvrtc_ok(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _nvrtc_ok(get(program, buffer))
    return buffer.raw


def _nvrtc_ok(status: int) -> None:
    if status:
        raise RuntimeError(f"NVRTC failed with status {status}")


def _cached(source: CudaSource) -> bytes:
    """The machine code of ``source``, compiled once for each version of the compiler."""
    from triton.runtime.cache import get_cache_manager

    words = (
        source.text(),
        source.kernel,
        source.defines,
        _OPTIONS,
        torch.version.cuda,
    )
    manager = get_cache_manager(hashlib.sha256(repr(words).encode()).hexdigest())
    found = manager.get_file(_CUBIN)
    if found is not None:
        return Path(found).read_bytes()
    code = source.compiled()
    manager.put(code, _CUBIN)
    return code


# -- the driver -----------------------------------------------------------------------------------


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@cache
def driver() -> ctypes.CDLL:
    """The library of the CUDA driver."""
    return ctypes.CDLL("libcuda.so.1")


def driver_ok(status: int, doing: str) -> None:
    """Raises ``RuntimeError`` with the driver's words if a call has failed."""
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        reason = text.value.decode() if text.value else f"error {status}"
        raise RuntimeError(f"the CUDA driver failed {doing}: {reason}")


def _load(key: _Key, code: bytes) -> ctypes.c_void_p:
    source, shared, device = key
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # creates the device's context
        driver_ok(driver().cuModuleLoadData(ctypes.byref(module), code), f"to load {source.kernel}")
        name = source.kernel.encode()
        driver_ok(
            driver().cuModuleGetFunction(ctypes.byref(function), module, name),
            f"to find {source.kernel}",
        )
        driver_ok(
            driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared),
            f"to give {source.kernel} {shared} bytes of shared memory",
        )
    return _LOADED.setdefault(key, function)


def _launch(launch: CudaLaunch, function: ctypes.c_void_p) -> None:
    places = [ctypes.cast(ctypes.pointer(a), ctypes.c_void_p) for a in launch.arguments]
    early = _Attribute(_PROGRAMMATIC_LAUNCH, b"", 1, b"")
    config = _Config(
        (launch.grid, 1, 1),
        (launch.threads, 1, 1),
        launch.shared,
        torch.cuda.current_stream(launch.device).cuda_stream,
        ctypes.pointer(early),
        int(launches.begins_early(launch.device)),
    )
    driver_ok(
        driver().cuLaunchKernelEx(
            ctypes.byref(config), function, (ctypes.c_void_p * len(places))(*places), None
        ),
        f"to launch {launch.source.kernel}",
    )
