"""The experts of a layer on the GPU; see the reference.

Which kernels run depends on the number of rows of the step alone. No host waits for the device.
"""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.act_and_mul.reference import Activation
from kinfolk_kernels.experts.group_kernels import group_gate_up_kernel
from kinfolk_kernels.experts.group_launches import group_launches
from kinfolk_kernels.experts.layer import Choice, Experts
from kinfolk_kernels.experts.pair_launches import joins, pair_launches
from kinfolk_kernels.experts.reference import SharedExpert
from kinfolk_kernels.experts.shared_launches import add_shared, shared_rows
from kinfolk_kernels.experts.stacks import Stack, format_of, refuses, steps, tensors_of, type_of
from kinfolk_kernels.linear.op import LinearArguments
from kinfolk_kernels.linear.triton_backend import supports as supports_linear
from kinfolk_kernels.planes import GROUP, PlanesStack
from kinfolk_kernels.sections import out_of_reach
from kinfolk_kernels.verdict import YES, Verdict, no

PAIRED_ROWS = 16
"""Up to here each row goes to its experts alone, if matrices may be multiplied with int8: of that
many rows few share an expert."""

MOST_EXPERTS = 1024
MOST_CHOSEN = 32
WIDEST = 16384


def supports(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate: Stack,
    up: Stack,
    down: Stack,
    bay_of_expert: torch.Tensor,
    activation: Activation,
    shared: SharedExpert | None,
) -> Verdict:
    """Whether ``experts`` can do this call."""
    for stack, name in ((gate, "gate"), (up, "up"), (down, "down")):
        reason = refuses(stack, name)
        if reason:
            return no(reason)
        if x.dtype == torch.float32 and type_of(stack) != torch.float32:
            return no(f"rows of float32 are not rounded to the {type_of(stack)} of {name}")
    stacks = [tensor for stack in (gate, up, down) for tensor in tensors_of(stack)]
    reason = out_of_reach(group_gate_up_kernel, x, ids, weights, bay_of_expert, *stacks)
    if reason:
        return no(reason)
    same = format_of(gate) == format_of(up) and type_of(gate) == type_of(up)
    if not same or steps(gate, as_bytes=True) != steps(up, as_bytes=True):
        return no("gate and up are stored differently")
    if x.stride(-1) != 1 or not all(t.is_contiguous() for t in (ids, weights, bay_of_expert)):
        return no("the rows or their choice are not contiguous")
    if bay_of_expert.shape[0] > MOST_EXPERTS or ids.shape[1] > MOST_CHOSEN:
        return no(f"{ids.shape[1]} of {bay_of_expert.shape[0]} experts are too many")
    return YES if shared is None else _supports_shared(x, shared)


def _supports_shared(x: torch.Tensor, shared: SharedExpert) -> Verdict:
    if x.shape[1] > WIDEST:
        return no(f"rows of {x.shape[1]}, more than {WIDEST}")
    matrices = (shared.gate, shared.up, shared.down)
    return supports_linear(LinearArguments(matrices, x.dtype, x.device))


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate: Stack,
    up: Stack,
    down: Stack,
    bay_of_expert: torch.Tensor,
    activation: Activation,
    shared: SharedExpert | None,
) -> torch.Tensor:
    """See the reference."""
    layer = Experts(gate, up, down, bay_of_expert, activation)
    choice = Choice(ids, weights)
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if x.shape[0] <= PAIRED_ROWS and takes_int8(layer):
        compiled = isinstance(group_gate_up_kernel, triton.JITFunction)
        if joins(shared, choice, layer):
            layer, shared = layer.beside(shared), None
        launches = pair_launches(x, choice, layer, y, asm=compiled)
    else:
        launches = group_launches(x.to(type_of(gate)).contiguous(), choice, layer, y)
    for launch in launches:
        launch.run()
    if shared is not None:
        add_shared(y, shared_rows(x, shared, activation), x, shared.shared_gate).run()
    return y


def takes_int8(layer: Experts) -> bool:
    """Whether few rows may be rounded to int8 before they meet the matrices."""
    return layer.channels % GROUP == 0 and all(
        isinstance(stack, PlanesStack) and stack.activations == "int8"
        for stack in (layer.gate, layer.up, layer.down)
    )
