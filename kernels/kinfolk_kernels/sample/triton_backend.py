"""``sample`` on the GPU, without sorting.

Greedy rows take two launches: tiles of the vocabulary, then one program for each row. To draw, the
mass of a row with a top-k or a top-p is added up in 8192 buckets of logits. These determine the
decisive buckets, in which truncation ends: their tokens are listed, and a search over the list
finds the last token that is left. Sums are integers, so neither tiles nor the order of additions
change it; it differs from the reference's only where a mass is within rounding of its bound.

Of all tokens that are left, the one with the largest key is drawn, its scaled logit plus noise.
Tiles compute keys in float32 and list the tokens that may have the largest, usually one. Keys of
listed tokens are float64, as the reference's: two tokens swap only if their keys are within the
rounding of two logarithms, some 1e-14.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.sample.kernels import choose_kernel, list_kernel, look_kernel, weigh_kernel
from kinfolk_kernels.sample.op import Parameters, SampleArguments
from kinfolk_kernels.sample.places import BUCKETS
from kinfolk_kernels.verdict import YES, Verdict, no

FINEST_BITS, TOTAL_BITS = 44, 62
"""Most bits of the largest weight, and of the sum of all weights of a row."""


def supports(arguments: SampleArguments) -> Verdict:
    reason = refuses_device(look_kernel, arguments.device)
    return no(reason) if reason else YES


def sample(
    arguments: SampleArguments, logits: torch.Tensor, rows: Parameters
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`SampleArguments`."""
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    count, device = logits.shape[0], logits.device
    tokens = torch.empty(count, dtype=torch.int64, device=device)
    finite = torch.empty(count, dtype=torch.bool, device=device)
    scratch = Scratch.make(logits, tile_for(count), draws=not rows.greedy)
    for launch in launches(logits, rows, scratch, tokens, finite):
        launch.run()
    return tokens, finite


def tile_for(rows: int) -> int:
    """Tokens of a program: small enough for all multiprocessors to have one, and no smaller."""
    return 2048 if rows <= 4 else 4096


@dataclass(frozen=True, slots=True)
class Scratch:
    """Intermediate results of the launches. For each tile of a row: ``best``, its largest logit,
    ``best_id``, the token of that, and ``finite``, whether all logits are. For each bucket:
    ``mass``, and ``count`` of its tokens. For each row: the list of ``codes``, and ``listed``, its
    length."""

    tile: int
    best: torch.Tensor
    best_id: torch.Tensor
    finite: torch.Tensor
    mass: torch.Tensor
    count: torch.Tensor
    codes: torch.Tensor
    listed: torch.Tensor

    @classmethod
    def make(cls, logits: torch.Tensor, tile: int, *, draws: bool) -> Scratch:
        (rows, vocabulary), device = logits.shape, logits.device
        tiles, drawn = triton.cdiv(vocabulary, tile), rows if draws else 0

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            tile,
            empty(rows, tiles, dtype=torch.float32),
            empty(rows, tiles),
            empty(rows, tiles),
            empty(drawn, BUCKETS.value, dtype=torch.int64),
            empty(drawn, BUCKETS.value),
            empty(drawn, vocabulary, dtype=torch.int64),
            empty(drawn),
        )


def launches(
    logits: torch.Tensor,
    rows: Parameters,
    scratch: Scratch,
    tokens: torch.Tensor,
    finite: torch.Tensor,
) -> Iterator[Launch]:
    """The launches that compute tokens int64 and finite bool [n] from logits float32 [n, V]."""
    (count, vocabulary), tile = logits.shape, scratch.tile
    tiles, warps = triton.cdiv(vocabulary, tile), tile // 512
    grid, draws = (tiles, count), not rows.greedy
    bits = max(1, (vocabulary - 1).bit_length())
    known = {"vocabulary": vocabulary, "tiles": tiles}
    read = {"logits_ptr": logits, "logits_row": logits.stride(0)}
    buckets = {"mass_ptr": scratch.mass, "count_ptr": scratch.count}
    listed = {"listed_ptr": scratch.listed, "codes_ptr": scratch.codes}
    drawn = {
        f"{name}_ptr": getattr(rows, name)
        for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position")
    }
    tiled = {"TILE": tile, "TILES": triton.next_power_of_2(tiles)}
    unit = {"UNIT": float(1 << min(FINEST_BITS, TOTAL_BITS - bits))}
    yield Launch(
        look_kernel,
        grid,
        {
            **read,
            "best_ptr": scratch.best,
            "best_id_ptr": scratch.best_id,
            "finite_ptr": scratch.finite,
            **buckets,
            "listed_ptr": scratch.listed,
            "vocabulary": vocabulary,
        },
        {
            "TILE": tile,
            "SHARE": triton.next_power_of_2(triton.cdiv(BUCKETS.value, tiles)),
            "DRAWS": draws,
        },
        warps,
    )
    if draws:
        scale = {name: drawn[name] for name in ("temperature_ptr", "top_k_ptr", "top_p_ptr")}
        yield Launch(
            weigh_kernel,
            grid,
            {**read, "best_ptr": scratch.best, **scale, **buckets, **known},
            {**tiled, **unit},
            warps,
            fuse=False,
        )
        yield Launch(
            list_kernel,
            grid,
            {**read, "best_ptr": scratch.best, **drawn, **buckets, **listed, **known},
            {**tiled, "TOKEN_BITS": bits},
            16,
            fuse=False,
        )
    yield Launch(
        choose_kernel,
        (count,),
        {
            "best_ptr": scratch.best,
            "best_id_ptr": scratch.best_id,
            "finite_ptr": scratch.finite,
            **drawn,
            **buckets,
            **listed,
            "token_ptr": tokens,
            "sound_ptr": finite.view(torch.uint8),
            **known,
        },
        {"TILES": tiled["TILES"], **unit, "TOKEN_BITS": bits, "DRAWS": draws},
        16 if draws else 4,
        fuse=False,
    )
