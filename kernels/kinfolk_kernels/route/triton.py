"""The choice of experts on the GPU: one program a row; see the reference."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.launch import Launch
from kinfolk_kernels.route.kernel import route_kernel
from kinfolk_kernels.route.reference import Score
from kinfolk_kernels.sections import out_of_reach
from kinfolk_kernels.verdict import YES, Verdict, no

MOST_EXPERTS = 1024


def supports(
    logits: torch.Tensor,
    score: Score,
    top_k: int,
    bias: torch.Tensor | None,
    scale: float,
    expert_scale: torch.Tensor | None,
) -> Verdict:
    """Whether ``route`` can do this call."""
    extras = [x for x in (bias, expert_scale) if x is not None]
    reason = out_of_reach(route_kernel, logits, *extras)
    if reason:
        return no(reason)
    if logits.dtype != torch.float32 or logits.stride(-1) != 1:
        return no(f"the logits are not contiguous float32 ({logits.dtype})")
    if any(x.dtype != torch.float32 or not x.is_contiguous() for x in extras):
        return no("a bias or scale of the experts is not contiguous float32")
    if logits.shape[1] > MOST_EXPERTS:
        return no(f"{logits.shape[1]} experts, more than {MOST_EXPERTS}")
    return YES


def route(
    logits: torch.Tensor,
    score: Score,
    top_k: int,
    bias: torch.Tensor | None,
    scale: float,
    expert_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the reference."""
    shape = (logits.shape[0], top_k)
    ids = torch.empty(shape, dtype=torch.int64, device=logits.device)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    choose(logits, score, bias, scale, expert_scale, ids, weights).run()
    return ids, weights


def choose(
    logits: torch.Tensor,
    score: Score,
    bias: torch.Tensor | None,
    scale: float,
    expert_scale: torch.Tensor | None,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> Launch:
    """ids int64 and weights float32 [R, K] of logits [R, E]."""
    rows, experts = logits.shape
    return Launch(
        route_kernel,
        (rows,),
        {
            "logits_ptr": logits,
            "bias_ptr": logits if bias is None else bias,
            "expert_scale_ptr": logits if expert_scale is None else expert_scale,
            "ids_ptr": ids,
            "weights_ptr": weights,
            "logits_row": logits.stride(0),
            "scale": float(scale),
        },
        {
            "EXPERTS": experts,
            "SIZE": triton.next_power_of_2(experts),
            "TOP_K": ids.shape[1],
            "PLACES": triton.next_power_of_2(ids.shape[1]),
            "SOFTMAX": score == "softmax",
            "BIASED": bias is not None,
            "SCALED": expert_scale is not None,
        },
        warps=1,
    )
