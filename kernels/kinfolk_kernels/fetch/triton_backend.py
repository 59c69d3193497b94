"""``fetch`` on the GPU, in one launch.

A launch that only decided and one that copied would cost every layer of a step the latency of two,
also where nothing is missed. So all programs decide the same, which costs no time as they do it
side by side, and none waits for another. Until a decision nothing is under way, so it is short: one
round of loads, a sum over the experts, and one reduction for the first record. The next ones are
decided while records come.
"""

from __future__ import annotations

import torch

from kinfolk_kernels.counters import counters
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.experts.bays import UNIT, unreadable
from kinfolk_kernels.experts.uses import bins, pairs_at_once
from kinfolk_kernels.fetch.kernel import fetch_kernel
from kinfolk_kernels.fetch.op import FetchArguments
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.verdict import YES, Verdict, no

MAX_FETCHED_EXPERTS = 1024

FETCH_PROGRAMS = 128
"""Sixteen keep the link busy. With so many, each has four pieces of a record of 2 MiB, and asks for
the next one before it stores a piece: half of the record is asked for at once."""

PIECE_WORDS = 1024
"""Words of a record that a program copies at a time: 4 KiB."""

FETCH_WARPS = 4
"""Of each program: two loads of 16 bytes a thread for a piece. With more, or with larger pieces,
some programs of the product behind would find no registers beside these, and start late."""


def supports(arguments: FetchArguments) -> Verdict:
    near, far = arguments.near, arguments.far
    device = arguments.bay_of_expert.device
    reason = refuses_device(fetch_kernel, device)
    if reason:
        return no(reason)
    if max(arguments.count, arguments.bays) > MAX_FETCHED_EXPERTS:
        return no(
            f"{arguments.count} experts in {arguments.bays} bays: more than {MAX_FETCHED_EXPERTS}"
        )
    types = {
        "near": (near, torch.uint8),
        "bay_of_expert": (arguments.bay_of_expert, torch.int64),
        "expert_of_bay": (arguments.expert_of_bay, torch.int32),
        "score": (arguments.score, torch.float32),
        "uses": (arguments.uses, torch.int64),
        "traffic": (arguments.traffic, torch.int64),
        "rows": (arguments.rows, torch.int32),
    }
    for name, (tensor, dtype) in types.items():
        if tensor.device != device or tensor.dtype != dtype:
            return no(f"{name} is {tensor.dtype} on {tensor.device}, not {dtype} on {device}")
        if name != "near" and not tensor.is_contiguous():
            return no(f"{name} is not contiguous")
    reason = unreadable(far, device)
    if reason:
        return no(f"the homes of the experts are {reason}")
    reason = refuses_records(near, far)
    return no(reason) if reason else YES


def refuses_records(near: torch.Tensor, far: torch.Tensor) -> str:
    """The reason why records [N, record] and [E, record] cannot be copied in whole units; empty if
    they can."""
    if far.dtype != torch.uint8 or near.shape[1:] != far.shape[1:]:
        return f"records of {list(near.shape[1:])} bytes, at home of {list(far.shape[1:])}"
    for records in (near, far):
        begins = 0 if records.shape[0] == 0 else records.data_ptr()
        step = 0 if records.shape[0] <= 1 else records.stride(0)
        if begins % UNIT or step % UNIT or records.shape[1] % UNIT or records.stride(1) != 1:
            return f"records are not contiguous, or no multiple of {UNIT} bytes"
    return ""


def fetch(arguments: FetchArguments, ids: torch.Tensor) -> None:
    """See :class:`FetchArguments`."""
    fetch_launch(arguments, ids.contiguous()).run()


def fetch_launch(arguments: FetchArguments, ids: torch.Tensor) -> Launch:
    """The launch of the op for ids [R, K]."""
    near, far = (records.view(torch.int32) for records in (arguments.near, arguments.far))
    return Launch(
        fetch_kernel,
        (FETCH_PROGRAMS,),
        {
            "ids_ptr": ids,
            "rows_ptr": arguments.rows,
            "far_ptr": far,
            "near_ptr": near,
            "bay_ptr": arguments.bay_of_expert,
            "owner_ptr": arguments.expert_of_bay,
            "score_ptr": arguments.score,
            "uses_ptr": arguments.uses,
            "traffic_ptr": arguments.traffic,
            "done_ptr": counters(ids.device),
            "pairs": ids.numel(),
            "bays": arguments.bays,
            "pinned": arguments.pinned,
            "words": far.shape[1],
            "near_step": near.stride(0),
            "far_step": far.stride(0),
            "decay": float(arguments.decay),
        },
        {
            "E": arguments.count,
            "TOP_K": ids.shape[1],
            "SIZE": bins(max(arguments.count, arguments.bays)),
            "PAIRS": pairs_at_once(ids.numel()),
            "WORDS": PIECE_WORDS,
        },
        warps=FETCH_WARPS,
    )
