"""The sum on the GPU, one program a row; see the reference."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.add_shared_expert.kernel import add_shared_expert_kernel
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.sections import out_of_reach
from kinfolk_kernels.verdict import YES, Verdict, no

WIDEST = 16384


def supports(
    routed: torch.Tensor, shared: torch.Tensor, x: torch.Tensor, gate: torch.Tensor | None
) -> Verdict:
    """Whether ``add_shared_expert`` can do this call."""
    given = [routed, shared, x] if gate is None else [routed, shared, x, gate]
    reason = out_of_reach(add_shared_expert_kernel, *given)
    if reason:
        return no(reason)
    if any(tensor.stride(-1) != 1 for tensor in given):
        return no("the columns of a row are not contiguous")
    if routed.shape[1] > WIDEST:
        return no(f"rows of {routed.shape[1]}, more than {WIDEST}")
    return YES


def add_shared_expert(
    routed: torch.Tensor, shared: torch.Tensor, x: torch.Tensor, gate: torch.Tensor | None
) -> torch.Tensor:
    """See the reference."""
    out = torch.empty(routed.shape, dtype=torch.float32, device=routed.device)
    add(routed, shared, x, gate, out).run()
    return out


def add(
    routed: torch.Tensor,
    shared: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor | None,
    out: torch.Tensor,
) -> Launch:
    """out float32 [R, W]."""
    rows, width = routed.shape
    return Launch(
        add_shared_expert_kernel,
        (rows,),
        {
            "routed_ptr": routed,
            "shared_ptr": shared,
            "x_ptr": x,
            "gate_ptr": routed if gate is None else gate,
            "out_ptr": out,
            "routed_row": routed.stride(0),
            "shared_row": shared.stride(0),
            "x_row": x.stride(0),
        },
        {"WIDTH": width, "SIZE": triton.next_power_of_2(width), "GATED": gate is not None},
        warps=8 if width > 1024 else 1,
    )
