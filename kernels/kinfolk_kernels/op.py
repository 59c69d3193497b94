"""An op: a name, the type of its arguments, and the reference that defines its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, Generic, ParamSpec, TypeVar

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Op(Generic[A, P, R]):
    """One op, defined once: ``kinfolk_kernels/<op>/op.py``.

    ``arguments`` is a frozen dataclass of the values that are fixed when a model is built: weights,
    shapes, dtypes, the device. ``reference(arguments, *operands)`` is the float32 implementation
    that defines the result; its operands are the tensors of a step. A back end has the same
    signature, and may have ``supports(arguments) -> Verdict``, which is called once, when the op is
    bound. ``capturable``: the reference reads no tensor on the host, so a CUDA graph can hold it.
    """

    name: str
    arguments: type[A]
    reference: Callable[Concatenate[A, P], R]
    capturable: bool = False
