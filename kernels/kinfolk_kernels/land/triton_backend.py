"""``land`` on the GPU, in one launch: as in ``fetch``, all programs decide the same and share the
copying."""

from __future__ import annotations

import torch

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.experts.bays import unreadable
from kinfolk_kernels.experts.uses import bins, pairs_at_once
from kinfolk_kernels.fetch.triton_backend import (
    FETCH_PROGRAMS,
    MAX_FETCHED_EXPERTS,
    PIECE_WORDS,
    refuses_records,
)
from kinfolk_kernels.land.kernel import land_kernel
from kinfolk_kernels.land.op import LandArguments
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.verdict import YES, Verdict, no


def supports(arguments: LandArguments) -> Verdict:
    far, landing, device = arguments.far, arguments.landing, arguments.bay_of_expert.device
    reason = refuses_device(land_kernel, device)
    if reason:
        return no(reason)
    if arguments.count > MAX_FETCHED_EXPERTS:
        return no(f"{arguments.count} experts: more than {MAX_FETCHED_EXPERTS}")
    types = {
        "landing": (landing, torch.uint8),
        "bay_of_expert": (arguments.bay_of_expert, torch.int64),
        "landed": (arguments.landed, torch.int64),
        "rows": (arguments.rows, torch.int32),
    }
    for name, (tensor, dtype) in types.items():
        if tensor.device != device or tensor.dtype != dtype:
            return no(f"{name} is {tensor.dtype} on {tensor.device}, not {dtype} on {device}")
        if name != "landing" and not tensor.is_contiguous():
            return no(f"{name} is not contiguous")
    if landing.shape[0] < arguments.count - arguments.bays:
        return no(
            f"{landing.shape[0]} landing bays for {arguments.count} experts in "
            f"{arguments.bays} near bays"
        )
    reason = unreadable(far, device)
    if reason:
        return no(f"the homes of the experts are {reason}")
    reason = refuses_records(landing, far)
    return no(reason) if reason else YES


def land(arguments: LandArguments, ids: torch.Tensor) -> None:
    """See :class:`LandArguments`."""
    land_launch(arguments, ids.contiguous()).run()


def land_launch(arguments: LandArguments, ids: torch.Tensor) -> Launch:
    """The launch of the op for ids [R, K]."""
    landing, far = (part.view(torch.int32) for part in (arguments.landing, arguments.far))
    return Launch(
        land_kernel,
        (FETCH_PROGRAMS,),
        {
            "ids_ptr": ids,
            "rows_ptr": arguments.rows,
            "far_ptr": far,
            "landing_ptr": landing,
            "bay_ptr": arguments.bay_of_expert,
            "landed_ptr": arguments.landed,
            "pairs": ids.numel(),
            "bays": arguments.bays,
            "places": landing.shape[0],
            "words": far.shape[1],
            "landing_step": landing.stride(0),
            "far_step": far.stride(0),
        },
        {
            "E": arguments.count,
            "TOP_K": ids.shape[1],
            "SIZE": bins(arguments.count),
            "PAIRS": pairs_at_once(ids.numel()),
            "WORDS": PIECE_WORDS,
        },
        warps=8,
    )
