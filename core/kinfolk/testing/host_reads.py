"""Finds what a CUDA graph cannot hold, on the CPU: tensors that are read or made on the host.

A drafter's methods are captured. On a GPU a read on the host fails there, and a launch that depends
on a value of the host is repeated with the value of the capture. Here calls of torch are watched.
Those of ``kinfolk_kernels`` are not: its back ends for the CPU read tensors, those for the GPU are
checked by tests of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

_READS: Final = frozenset(
    (
        *("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"),
        *("__complex__", "__array__", "__contains__", "is_nonzero", "nonzero", "argwhere"),
        *("masked_select", "unique", "unique_consecutive", "bincount", "equal", "allclose"),
    )
)
"""Functions whose result, or its size, is known only to the device."""

_MAKES: Final = frozenset(["tensor", "as_tensor", "asarray", "from_numpy", "frombuffer"])
"""Functions that copy numbers of the host to the device."""

_KERNELS: Final = "kinfolk_kernels"


class OnDevice(TorchFunctionMode):
    """A context in which a read or a copy by the host is an :class:`AssertionError` that names
    function and line.

    ``calls`` lists the functions that were called, with shapes and Python numbers of their
    arguments: for equal shapes, equal calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[object, ...]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        module, line = _caller()
        if module.split(".")[0] != _KERNELS:
            if problem := _problem(name, args, kwargs):
                raise AssertionError(f"{problem} ({module}, line {line})")
            self.calls.append((name, _outline(args), _outline(tuple(sorted(kwargs.items())))))
        return func(*args, **kwargs)


def _caller() -> tuple[str, int]:
    """Module and line of the code that calls torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] != "torch":
            return module, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _problem(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What the host reads or copies in a call; empty if nothing."""
    if name in _READS or (name == "where" and len(args) == 1):
        return f"the host reads a tensor: {name}"
    if name in _MAKES:
        return f"the host makes a tensor of its own numbers: {name}"
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        counts = args[1] if len(args) > 1 else kwargs.get("repeats")
        if isinstance(counts, torch.Tensor):
            return "the host reads a tensor: repeat_interleave without output_size"
    if name in ("__getitem__", "__setitem__"):
        number = name == "__setitem__" and not isinstance(args[2], torch.Tensor)
        for index in args[1] if isinstance(args[1], tuple) else (args[1],):
            if isinstance(index, list):
                return "the host makes a tensor of its own numbers: an index that is a list"
            if isinstance(index, torch.Tensor) and index.dtype == torch.bool and not number:
                return "the host reads a tensor: an index that is a mask"
    return ""


def _outline(value: Any) -> object:
    """Shapes of tensors, and Python values, of an argument."""
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), str(value.dtype))
    if isinstance(value, tuple | list):
        return tuple(map(_outline, value))
    if isinstance(value, slice):
        return ("slice", *map(_outline, (value.start, value.stop, value.step)))
    return value if isinstance(value, int | float | str | bool | None) else type(value).__name__
