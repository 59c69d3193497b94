"""``experts`` on the GPU.

The number of rows of the step selects the kernels. The host does not wait for the device.

Far experts are read where they are, and over the link again for each row that chose them: steps of
several rows copy them to landing bays first (``land``), where there are any. No expert may be
absent if there is a near bay for each, no far one, and no number of real rows: the map is not
looked at then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import triton

from kinfolk_kernels.cuda_source import CudaLaunch, unavailable
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.experts.bays import refuses_far
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.group_kernels import group_gate_up_kernel
from kinfolk_kernels.experts.group_launches import group_launches
from kinfolk_kernels.experts.int8_group_launches import int8_group_launches
from kinfolk_kernels.experts.mma_group_launches import mma_group_launches
from kinfolk_kernels.experts.op import ExpertsArguments
from kinfolk_kernels.experts.pair_launches import GateUp, joins, pair_launches
from kinfolk_kernels.experts.shared_launches import add_shared, shared_rows
from kinfolk_kernels.experts.stacks import Stack, format_of, refuses, steps, tensors_of, type_of
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.op import LinearArguments
from kinfolk_kernels.linear.triton_backend import supports as supports_linear
from kinfolk_kernels.planes import GROUP_WEIGHTS, PlanesStack
from kinfolk_kernels.verdict import YES, Verdict, no

PAIRED_ROWS = 32
"""Up to this many rows, pairs are computed separately if the matrices allow int8 activations: few
rows share an expert then."""

INT8_GROUPED_ROWS = 512
"""Above ``PAIRED_ROWS`` and up to this many rows, the pairs of an expert are multiplied together
with rows in int8 if the matrices allow that. Of more rows, by warpgroups where there are any."""

MAX_STACKED_EXPERTS = 1024
MOST_CHOSEN = 32
MAX_EXPERT_COLUMNS = 16384


def supports(arguments: ExpertsArguments[Stack]) -> Verdict:
    gate, up, down = arguments.gate, arguments.up, arguments.down
    device, dtype = arguments.bay_of_expert.device, arguments.dtype
    reason = refuses_device(group_gate_up_kernel, device, dtype)
    if reason:
        return no(reason)
    for stack, name in ((gate, "gate"), (up, "up"), (down, "down")):
        reason = refuses(stack, name)
        if reason:
            return no(reason)
        if dtype == torch.float32 and type_of(stack) != torch.float32:
            return no(f"rows of float32 are not rounded to the {type_of(stack)} of {name}")
        for tensor in tensors_of(stack):
            if tensor.device != device:
                return no(f"{name} is on {tensor.device}, the model on {device}")
            reason = refuses_device(group_gate_up_kernel, device, tensor.dtype)
            if reason:
                return no(reason)
    same = format_of(gate) == format_of(up) and type_of(gate) == type_of(up)
    if not same or steps(gate, as_bytes=True) != steps(up, as_bytes=True):
        return no("gate and up are stored differently")
    rows = arguments.rows
    if rows is not None and (rows.dtype != torch.int32 or rows.device != device):
        return no(f"the number of real rows is {rows.dtype} on {rows.device}")
    reason = refuses_far(arguments)
    if reason:
        return no(reason)
    if not arguments.bay_of_expert.is_contiguous():
        return no("the bays of the experts are not contiguous")
    if arguments.count > MAX_STACKED_EXPERTS or arguments.top_k > MOST_CHOSEN:
        return no(f"{arguments.top_k} of {arguments.count} experts are too many")
    return _supports_shared(arguments)


def _supports_shared(arguments: ExpertsArguments[Stack]) -> Verdict:
    shared = arguments.shared
    if shared is None:
        return YES
    if arguments.width > MAX_EXPERT_COLUMNS:
        return no(f"rows of {arguments.width}, more than {MAX_EXPERT_COLUMNS}")
    matrices = (shared.gate, shared.up, shared.down)
    device = arguments.bay_of_expert.device
    return supports_linear(LinearArguments(matrices, arguments.dtype, device))


def experts(
    arguments: ExpertsArguments[Stack], x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """See :class:`ExpertsArguments`."""
    return run_experts(arguments, x, ids, weights)


def run_experts(
    arguments: ExpertsArguments[Stack],
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: GateUp | None = None,
) -> torch.Tensor:
    """``experts``; ``gate_up`` makes the launch of gate and up where pairs are computed
    separately."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    choice, shared = Choice(ids.contiguous(), weights.contiguous()), arguments.shared
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    compiled = isinstance(group_gate_up_kernel, triton.JITFunction)
    launches: Iterator[Launch | CudaLaunch]
    if x.shape[0] <= PAIRED_ROWS and takes_int8(arguments):
        routed = arguments
        if joins(arguments, choice):
            shared = None
        elif shared is not None:
            routed = replace(arguments, shared=None)
        launches = pair_launches(x, choice, routed, y, asm=compiled, gate_up=gate_up)
    elif x.shape[0] <= INT8_GROUPED_ROWS and takes_int8(arguments):
        launches = int8_group_launches(x, choice, arguments, y, asm=compiled)
    elif x.shape[0] > INT8_GROUPED_ROWS and grouped_by_mma(arguments):
        launches = mma_group_launches(x, choice, arguments, y)
    else:
        rows = x.to(type_of(arguments.gate)).contiguous()
        launches = group_launches(rows, choice, arguments, y)
    for launch in launches:
        launch.run()
    if shared is not None:
        inner = shared_rows(x, shared, arguments.activation)
        add_shared(y, inner, x, shared.shared_gate).run()
    return y


def grouped_by_mma(arguments: ExpertsArguments[Stack]) -> bool:
    """Whether the products of a prompt are those of ``mma_groups``."""
    stacks = (arguments.gate, arguments.up, arguments.down)
    packed = all(isinstance(stack, PlanesStack) for stack in stacks)
    return packed and not unavailable(arguments.bay_of_expert.device)


def takes_int8(arguments: ExpertsArguments[Stack]) -> bool:
    """Whether the matrices allow int8 activations for few rows."""
    return arguments.channels % GROUP_WEIGHTS == 0 and all(
        isinstance(stack, PlanesStack) and stack.activations == "int8"
        for stack in (arguments.gate, arguments.up, arguments.down)
    )
