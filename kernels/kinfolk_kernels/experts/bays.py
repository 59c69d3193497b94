"""Where the kernels find the matrices of a bay, near or far, as arguments of a launch.

The planes of an expert lie in one record, at the same places in near and in far records. So one
distance in bytes, which a kernel computes from two addresses, leads from near bays to far ones, for
all planes. It is no number of the launch: one compiled kernel serves all layers, whatever lies
between their bays.
"""

from __future__ import annotations

from typing import Any

import torch

from kinfolk_kernels.experts.op import ExpertsArguments
from kinfolk_kernels.experts.stacks import Stack, pointers, refuses, steps, tensors_of

UNIT = 16
"""Bytes of the unit in which kernels count between records: the widest load."""


def base(near: Stack, far: Stack | None) -> Stack:
    """The stack with bay 0: the far one if there is no near bay, whose stack has no address."""
    return near if far is None or near.shape[0] else far


def places(
    near: Stack, far: Stack | None, first: torch.Tensor, *, as_bytes: bool
) -> dict[str, Any]:
    """The arguments that lead to a bay from bay 0, whose codes or numbers are at ``first``: in
    records with far experts, else in the elements of each plane."""
    if far is None:
        return {"far_ptr": first, "near": 0, "record": 0, **steps(near, as_bytes=as_bytes)}
    none = dict.fromkeys(steps(far, as_bytes=as_bytes), 0)
    home = pointers("home", far, as_bytes=as_bytes)["home_q"]
    record = _stride(home) // UNIT
    return {"far_ptr": home, "near": near.shape[0], "record": record, **none}


def _stride(plane: torch.Tensor) -> int:
    """Bytes between the matrices of a plane."""
    return plane.stride(0) * plane.element_size()


def rows_pointer(arguments: ExpertsArguments[Stack]) -> dict[str, torch.Tensor]:
    """The number of real rows; without one, an address that is not read."""
    rows = arguments.rows
    return {"rows_ptr": arguments.bay_of_expert if rows is None else rows}


def switches(arguments: ExpertsArguments[Stack]) -> dict[str, bool]:
    """FAR: some bays are far. GAPS: experts may be absent, or rows padding. PADDED: there is a
    number of real rows. An expert is never absent where each has a near bay."""
    far, padded = arguments.far is not None, arguments.rows is not None
    gaps = far or padded or arguments.near < arguments.count
    return {"FAR": far, "GAPS": gaps, "PADDED": padded}


def refuses_far(arguments: ExpertsArguments[Stack]) -> str:
    """The reason why far experts cannot be read; empty if they can, or if there are none."""
    far, device = arguments.far, arguments.bay_of_expert.device
    if far is None:
        return ""
    pairs = {
        name: (getattr(arguments, name), getattr(far, name)) for name in ("gate", "up", "down")
    }
    for name, (here, there) in pairs.items():
        reason = refuses(there, f"the far {name}") or _differs(name, here, there)
        if reason:
            return reason
        if there.shape[0] < arguments.count - arguments.near:
            return (
                f"{there.shape[0]} far bays of {name} for {arguments.count} experts, of which "
                f"{arguments.near} have near ones"
            )
        for plane in tensors_of(there):
            reason = unreadable(plane, device)
            if reason:
                return f"the far {name} is {reason}"
    both = [pairs["gate"], pairs["up"]]
    return _refuses_records("gate and up", both) or _refuses_records("down", [pairs["down"]])


def unreadable(memory: torch.Tensor, device: torch.device) -> str:
    """The reason why kernels on a device cannot read memory by its address; empty if they can: its
    own, and host memory that torch or the driver has page-locked."""
    if memory.device == device:
        return ""
    if device.type == "cuda" and memory.device.type == "cpu":
        return "" if memory.is_pinned() else "in host memory that is not page-locked"
    return f"in memory of {memory.device} that {device} cannot read"


def _differs(name: str, near: Stack, far: Stack) -> str:
    """The reason why a far stack holds other matrices than the near one; empty if it does not."""

    def kind(stack: Stack) -> tuple[Any, ...]:
        if isinstance(stack, torch.Tensor):
            return stack.dtype, stack.shape[1:]
        return stack.format, stack.activations, stack.shape[1:]

    if kind(near) == kind(far):
        return ""
    return f"{name} is stored differently in near and in far bays: {kind(near)}, {kind(far)}"


def _refuses_records(name: str, pairs: list[tuple[Stack, Stack]]) -> str:
    """The reason why a launch cannot reach the planes of near and far stacks with one step and one
    distance."""
    planes = [
        both for near, far in pairs for both in zip(tensors_of(near), tensors_of(far), strict=True)
    ]
    found = {_stride(far) for _, far in planes}
    # The stride between matrices means nothing where there is one at most.
    found |= {_stride(near) for near, _ in planes if near.shape[0] > 1}
    if len(found) > 1:
        return f"the planes of {name} are {sorted(found)} bytes apart, not one record"
    if found.pop() % UNIT:
        return f"records of {name} are no multiple of {UNIT} bytes"
    if pairs[0][0].shape[0] == 0:
        return ""
    distances = {far.data_ptr() - near.data_ptr() for near, far in planes}
    if len(distances) > 1:
        return f"the planes of {name} lie at different places in near and in far records"
    if distances.pop() % UNIT:
        return f"the near and far records of {name} are no multiple of {UNIT} bytes apart"
    return ""
