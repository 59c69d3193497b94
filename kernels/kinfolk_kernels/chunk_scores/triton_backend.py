"""``chunk_scores`` on the GPU, in three launches, or four if queries must be rotated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kinfolk_kernels.chunk_digest.op import KeyDigest
from kinfolk_kernels.chunk_digest.triton_backend import DIGEST_DIMS
from kinfolk_kernels.chunk_scores.kernels import (
    attention_totals_kernel,
    chunk_attention_kernel,
    largest_share_kernel,
    rotate_queries_kernel,
)
from kinfolk_kernels.chunk_scores.op import ChunkScoresArguments
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

RUN_CHUNKS = 8
"""Chunks that a program scores with the queries that it has loaded."""

MOST_PAIRS = 64
"""Most pairs of a row and a query head in a tile."""


def supports(arguments: ChunkScoresArguments) -> Verdict:
    reason = refuses_device(chunk_attention_kernel, arguments.device, arguments.dtype)
    if reason:
        return no(reason)
    if arguments.dtype not in FLOATS:
        return no(f"queries of {arguments.dtype}")
    if arguments.dim not in DIGEST_DIMS:
        return no(f"queries of {arguments.dim} dimensions; it multiplies {DIGEST_DIMS}")
    return YES


@dataclass(frozen=True, slots=True)
class ScoreScratch:
    """``rotated`` like the queries; ``attention`` float32 [C, pairs], ``totals`` float32 [pairs];
    ``scores`` float32 [C], the result. A pair is a row and a query head of a layer."""

    rotated: torch.Tensor
    attention: torch.Tensor
    totals: torch.Tensor
    scores: torch.Tensor

    @classmethod
    def make(cls, queries: torch.Tensor, chunks: int) -> ScoreScratch:
        rows, layers, heads, _ = queries.shape
        pairs, device = rows * layers * heads, queries.device
        return cls(
            torch.empty(queries.shape, dtype=queries.dtype, device=device),
            torch.empty(chunks, pairs, device=device),
            torch.empty(pairs, device=device),
            torch.empty(chunks, device=device),
        )


def chunk_scores(
    arguments: ChunkScoresArguments,
    queries: torch.Tensor,
    digest: KeyDigest,
    places: torch.Tensor,
) -> torch.Tensor:
    """See :class:`ChunkScoresArguments`."""
    if queries.stride(-1) != 1:
        queries = queries.contiguous()
    chunks = places.shape[0]
    scratch = ScoreScratch.make(queries, chunks)
    if chunks:
        for launch in launches(arguments, queries, digest, places, scratch):
            launch.run()
    return scratch.scores


def launches(
    arguments: ChunkScoresArguments,
    queries: torch.Tensor,
    digest: KeyDigest,
    places: torch.Tensor,
    scratch: ScoreScratch,
) -> Iterator[Launch]:
    """The launches that fill ``scratch``; heads of ``digest`` must be contiguous."""
    rows, layers, heads, dim = queries.shape
    if not arguments.rotated:
        yield Launch(
            rotate_queries_kernel,
            (rows * layers, heads),
            {"q_ptr": queries, "out_ptr": scratch.rotated, **_strides(queries)},
            {"LAYERS": layers, "HEADS": heads, "DIM": dim},
            warps=1,
        )
        queries = scratch.rotated
    group, chunks = heads // arguments.kv_heads, places.shape[0]
    # Products in float32 do not run on tensor cores and need more registers.
    most = MOST_PAIRS if queries.element_size() < 4 else 16
    tile = max(16, min(most, 1 << (rows * group - 1).bit_length()))
    tiles = _divided(rows * group, tile)
    yield Launch(
        chunk_attention_kernel,
        (_divided(chunks, RUN_CHUNKS), arguments.kv_heads * tiles, layers),
        {
            "q_ptr": queries,
            "places": places,
            "codes_ptr": digest.codes,
            "scales_ptr": digest.scales,
            "out_ptr": scratch.attention,
            "rows": rows,
            "chunks": chunks,
            "tiles": tiles,
            **_strides(queries),
            "codes_place": digest.codes.stride(0),
            "codes_layer": digest.codes.stride(1),
            "scales_place": digest.scales.stride(0),
            "scales_layer": digest.scales.stride(1),
            "factor": arguments.scale * math.log2(math.e) / 2,
        },
        {
            "KV_HEADS": arguments.kv_heads,
            "GROUP": group,
            "DIM": dim,
            "PAIRS": tile,
            "RUN": RUN_CHUNKS,
        },
        warps=4,
        stages=2,
    )
    pairs = scratch.totals.numel()
    yield Launch(
        attention_totals_kernel,
        (_divided(pairs, 16),),
        {
            "attention_ptr": scratch.attention,
            "out_ptr": scratch.totals,
            "chunks": chunks,
            "pairs": pairs,
        },
        {"PAIRS": 16, "CHUNKS": 128},
        stages=2,
    )
    yield Launch(
        largest_share_kernel,
        (_divided(chunks, 4),),
        {
            "attention_ptr": scratch.attention,
            "totals_ptr": scratch.totals,
            "places": places,
            "out_ptr": scratch.scores,
            "chunks": chunks,
            "pairs": pairs,
        },
        {"PAIRS": 256, "CHUNKS": 4},
    )


def _strides(queries: torch.Tensor) -> dict[str, int]:
    return dict(zip(("q_row", "q_layer", "q_head"), queries.stride()[:3], strict=True))


def _divided(amount: int, by: int) -> int:
    """Rounded up; ``triton.cdiv`` takes as long as a launch."""
    return -(-amount // by)
