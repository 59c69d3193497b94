"""``fetch_experts`` on the GPU: for one row in the two launches of its products.

A launch between the choice of experts and their product costs each layer 1.9 us where nothing is
missed, this one 0.3; where one expert is, 4.3 us that are no bytes on the link, this one none
(H200, ``benchmarks/NOTES.md``). Several rows may miss the same expert, so theirs are fetched first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from kinfolk_kernels.experts import triton_backend as experts_backend
from kinfolk_kernels.experts.bays import UNIT
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.op import ExpertsArguments
from kinfolk_kernels.experts.pair_launches import Inner, gate_up_pairs
from kinfolk_kernels.experts.stacks import Stack, tensors_of
from kinfolk_kernels.experts.triton_backend import run_experts, takes_int8
from kinfolk_kernels.fetch import triton_backend as fetch_backend
from kinfolk_kernels.fetch.op import FetchArguments
from kinfolk_kernels.fetch.triton_backend import fetch_launch
from kinfolk_kernels.fetch_experts.kernel import fetch_gate_up_kernel
from kinfolk_kernels.fetch_experts.op import FetchExpertsArguments
from kinfolk_kernels.int8_rows import Int8Rows
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.planes import INTERLEAVE, PlanesStack
from kinfolk_kernels.verdict import YES, Verdict, no

SLICE_WORDS = 512
"""Words in a piece: two loads of 16 bytes of each thread."""

CAPPED_REGISTERS, CAPPED_FORMATS = 88, ("Q4_K", "Q4_0")
"""Most registers of a thread, for formats of gate and up whose product keeps them in its loop. All
programs of a row with 512 or 704 channels are resident at a time then; with 112 they are not, and a
step of a 35B-A3B that misses nothing takes 0.08 ms more."""

MOST_CAPPED_EXPERTS, MOST_CAPPED_COLUMNS = 256, 4096
"""Up to so many; with more, what a program decides with or copies would be spilled."""


def supports(arguments: FetchExpertsArguments[Stack]) -> Verdict:
    fetch, experts = arguments.fetch, arguments.experts
    for verdict in (fetch_backend.supports(fetch), experts_backend.supports(experts)):
        if not verdict:
            return verdict
    if experts.far is None:
        return no("all experts are near")
    if experts.rows is not fetch.rows or experts.bay_of_expert is not fetch.bay_of_expert:
        return no("what is fetched has another map, or another number of rows, than the product")
    if not takes_int8(experts):
        return no("the matrices are not multiplied with rows in int8")
    if fetch.bays - fetch.pinned < experts.top_k:
        return no(
            f"{fetch.bays} bays, of which {fetch.pinned} keep their experts, have no room for "
            f"the {experts.top_k} experts of a row"
        )
    reason = _refuses_places(fetch, experts)
    return no(reason) if reason else YES


def _refuses_places(fetch: FetchArguments, experts: ExpertsArguments[Stack]) -> str:
    """The reason why programs that copy gate, up and the range of down do not copy whole records;
    empty if they do."""
    far = experts.far
    assert far is not None
    here = [place_in_record(fetch.near, each) for each in (experts.gate, experts.up, experts.down)]
    there = [place_in_record(fetch.far, each) for each in (far.gate, far.up, far.down)]
    record, (gate, up, down) = fetch.near.shape[1], here
    if here != there or any(each.begin < 0 or each.end > record for each in here):
        return "the matrices are not in the records"
    held = gate.size + up.size + down.size
    if held != record:
        return f"of {record} bytes of a record, matrices have {held}"
    if down.end - down.begin != down.size:
        return "other matrices lie between the planes of down"
    return ""


class PlaceInRecord(NamedTuple):
    """Where the planes of a stack begin and end in a record, and how many bytes they have."""

    begin: int
    end: int
    size: int


def place_in_record(records: torch.Tensor, stack: Stack) -> PlaceInRecord:
    """That of a stack in ``records``."""
    planes = tensors_of(stack)
    sizes = [plane[0].numel() * plane.element_size() for plane in planes]
    begins = [plane.data_ptr() - records.data_ptr() for plane in planes]
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    return PlaceInRecord(min(begins), max(ends), sum(sizes))


def fetch_experts(
    arguments: FetchExpertsArguments[Stack],
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """See :class:`FetchExpertsArguments`."""
    ids = ids.contiguous()
    if x.shape[0] > 1:
        fetch_launch(arguments.fetch, ids).run()
        return run_experts(arguments.experts, x, ids, weights)
    return run_experts(
        arguments.experts, x, ids, weights, partial(fetch_gate_up, fetch=arguments.fetch)
    )


def fetch_gate_up(
    x: torch.Tensor,
    rows: Int8Rows,
    choice: Choice,
    experts: ExpertsArguments[Stack],
    inner: Inner,
    *,
    fetch: FetchArguments,
    asm: bool = True,
) -> Launch:
    """The launch of ``gate_up_pairs`` for one row that fetches too."""
    product = gate_up_pairs(x, rows, choice, experts, inner, asm=asm)
    moves = fetch_launch(fetch, choice.ids)
    pairs, parts = product.grid
    down = place_in_record(fetch.near, experts.down)
    mine = fetch_gate_up_kernel.arg_names
    arguments = {
        **moves.arguments,
        **product.arguments,
        "down_ptr": fetch.near[:, down.begin : down.end].view(torch.int32),
        "words": down.size // UNIT,
    }
    constants = {
        **moves.constants,
        **product.constants,
        **_quad_words(experts.gate),
        "PIECE": SLICE_WORDS,
    }
    return replace(
        product,
        registers=_most_registers(experts),
        kernel=fetch_gate_up_kernel,
        grid=(pairs, parts + 1),
        arguments={name: value for name, value in arguments.items() if name in mine},
        constants={name: value for name, value in constants.items() if name in mine},
    )


def _most_registers(experts: ExpertsArguments[Stack]) -> int | None:
    """``None``: as many as the compiler likes."""
    assert isinstance(experts.gate, PlanesStack)
    small = experts.count <= MOST_CAPPED_EXPERTS and experts.width <= MOST_CAPPED_COLUMNS
    return CAPPED_REGISTERS if small and experts.gate.format in CAPPED_FORMATS else None


def _quad_words(stack: Stack) -> dict[str, int]:
    """Words of a group of four rows in each plane, by constant; 0 = no such plane."""
    assert isinstance(stack, PlanesStack)
    quads = stack.shape[1] // INTERLEAVE
    planes = {"Q": stack.q, "HIGH": stack.high, "SCALES": stack.scales, "SUPERS": stack.supers}
    return {
        name: 0 if plane is None else plane[0].numel() // quads for name, plane in planes.items()
    }
