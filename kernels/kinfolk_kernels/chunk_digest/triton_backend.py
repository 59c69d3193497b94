"""``chunk_digest`` on the GPU, in one launch."""

from __future__ import annotations

import torch

from kinfolk_kernels.chunk_digest.kernel import chunk_digest_kernel
from kinfolk_kernels.chunk_digest.op import ChunkDigestArguments, KeyDigest
from kinfolk_kernels.codecs import Stored, dim_of, heads_of, is_rotated
from kinfolk_kernels.coded_tiles import FORMAT_NUMBERS
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.sections import format_of, row_of, section_arguments
from kinfolk_kernels.verdict import YES, Verdict, no

DIGEST_TILE_NUMBERS = 8192
"""Numbers that a program holds at a time, 64 a thread."""

DIGEST_DIMS = (64, 128, 256, 512)


def supports(arguments: ChunkDigestArguments) -> Verdict:
    keys = arguments.keys
    dtypes = [] if keys.dtype is None else [keys.dtype]
    reason = refuses_device(chunk_digest_kernel, arguments.device, *dtypes) or keys.refusal
    if reason:
        return no(reason)
    if keys.dim not in DIGEST_DIMS:
        return no(f"keys of {keys.dim} dimensions; it compresses {DIGEST_DIMS}")
    return YES


def chunk_digest(
    arguments: ChunkDigestArguments,
    keys: Stored,
    blocks: torch.Tensor,
    firsts: torch.Tensor,
    places: torch.Tensor,
    digest: KeyDigest,
) -> None:
    """See :class:`ChunkDigestArguments`."""
    if len(blocks):
        compress(keys, blocks, firsts, places, digest).run()


def compress(
    keys: Stored,
    blocks: torch.Tensor,
    firsts: torch.Tensor,
    places: torch.Tensor,
    digest: KeyDigest,
) -> Launch:
    """The launch that fills the places of ``digest``, whose heads must be contiguous."""
    dim = dim_of(keys)
    return Launch(
        chunk_digest_kernel,
        (len(blocks), heads_of(keys)),
        {
            "blocks": blocks,
            "firsts": firsts,
            "places": places,
            **section_arguments("k", keys),
            "codes_ptr": digest.codes,
            "scales_ptr": digest.scales,
            "codes_place": digest.codes.stride(0),
            "scales_place": digest.scales.stride(0),
        },
        {
            "DIM": dim,
            "K_ROW": row_of(keys),
            "K_FORMAT": FORMAT_NUMBERS[format_of(keys)],
            "K_ROTATED": is_rotated(keys),
            "TILE": min(64, DIGEST_TILE_NUMBERS // dim),
        },
        warps=4,
    )
