"""The kernels that sample a token of each row; triton_backend.py describes the algorithm."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.sample.places import (
    BUCKETS,
    bucket_of,
    code_of,
    first_with,
    logit_of,
    marks,
    mass_before,
    mass_of,
    scaled,
    share,
    target_of,
    uniform,
)

_PLACES = tl.constexpr(1024)
"""Candidates of a decisive bucket that are processed at once."""

_BEYOND = tl.constexpr(2**62)
"""Greater than every code."""


@triton.jit(do_not_specialize=["vocabulary"])
def look_kernel(
    logits_ptr,
    best_ptr,
    best_id_ptr,
    finite_ptr,
    mass_ptr,
    count_ptr,
    listed_ptr,
    vocabulary,
    logits_row,
    TILE: tl.constexpr,
    SHARE: tl.constexpr,
    DRAWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (tiles, rows). Stores the largest logit of a tile, the first token that has it, and
    whether all are finite. With DRAWS, a program also clears SHARE of its row's BUCKETS."""
    start_dependents(PDL)
    tile, row, tiles = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    token = tile * TILE + tl.arange(0, TILE)
    inside = token < vocabulary
    wait_for_producers(PDL)
    x = tl.load(logits_ptr + row * logits_row + token, mask=inside, other=float("-inf"))
    best = tl.max(x, 0)
    first = tl.min(tl.where(inside & (x == best), token, vocabulary - 1), 0)
    finite = (tl.abs(x) < float("inf")) | ~inside
    tl.store(best_ptr + row * tiles + tile, best)
    tl.store(best_id_ptr + row * tiles + tile, first)
    tl.store(finite_ptr + row * tiles + tile, tl.min(finite.to(tl.int32), 0))
    if DRAWS:
        bucket = tile * SHARE + tl.arange(0, SHARE)
        at = row * BUCKETS + bucket
        tl.store(mass_ptr + at, tl.zeros([SHARE], tl.int64), mask=bucket < BUCKETS)
        tl.store(count_ptr + at, tl.zeros([SHARE], tl.int32), mask=bucket < BUCKETS)
        if tile == 0:
            tl.store(listed_ptr + row, 0)


@triton.jit
def _largest(best_ptr, row, tiles, TILES: tl.constexpr):
    tile = tl.arange(0, TILES)
    each = tl.load(best_ptr + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    return tl.max(each, 0)


@triton.jit(do_not_specialize=["vocabulary", "tiles"])
def weigh_kernel(
    logits_ptr,
    best_ptr,
    temperature_ptr,
    top_k_ptr,
    mass_ptr,
    count_ptr,
    vocabulary,
    logits_row,
    tiles,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    UNIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (tiles, rows). Adds the mass of a tile's tokens to the buckets of its row, and counts
    them there if the row has a top-k."""
    start_dependents(PDL)
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = token < vocabulary
    wait_for_producers(PDL)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0.0:
        top = scaled(_largest(best_ptr, row, tiles, TILES), temperature)
        x = tl.load(logits_ptr + row * logits_row + token, mask=inside, other=float("-inf"))
        depth = top - scaled(x, temperature)
        mass = mass_of(depth, UNIT)
        at = row * BUCKETS + bucket_of(depth)
        tl.atomic_add(mass_ptr + at, mass, mask=inside & (mass > 0), sem="relaxed")
        if tl.load(top_k_ptr + row) > 0:
            tl.atomic_add(count_ptr + at, 1, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["vocabulary", "tiles"])
def list_kernel(
    logits_ptr,
    best_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    position_ptr,
    mass_ptr,
    count_ptr,
    listed_ptr,
    codes_ptr,
    vocabulary,
    logits_row,
    tiles,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    TOKEN_BITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (tiles, rows). Puts the codes of the tokens in decisive buckets into the row's list, in
    any order."""
    start_dependents(PDL)
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = token < vocabulary
    bucket = tl.arange(0, BUCKETS)
    wait_for_producers(PDL)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0.0:
        k_at, m_at, p_from, p_to, d_from, d_to = marks(
            tl.load(mass_ptr + row * BUCKETS + bucket),
            count_ptr + row * BUCKETS,
            tl.load(top_k_ptr + row),
            tl.load(top_p_ptr + row),
            tl.load(min_p_ptr + row),
            uniform(tl.load(seed_ptr + row), tl.load(position_ptr + row)),
        )
        top = scaled(_largest(best_ptr, row, tiles, TILES), temperature)
        x = tl.load(logits_ptr + row * logits_row + token, mask=inside, other=float("-inf"))
        y = scaled(x, temperature)
        at = bucket_of(top - y)
        decisive = (at == k_at) | (at == m_at) | ((at >= p_from) & (at <= p_to))
        decisive = inside & (decisive | ((at >= d_from) & (at <= d_to)))
        counter = listed_ptr + row + tl.zeros([TILE], tl.int32)
        place = tl.atomic_add(counter, 1, mask=decisive, sem="relaxed")
        code = code_of(y, token, TOKEN_BITS)
        tl.store(codes_ptr + row * vocabulary + place, code, mask=decisive)


@triton.jit
def _listed(codes_ptr, start, listed, bucket, top, UNIT: tl.constexpr, BITS: tl.constexpr):
    """A part of a list: codes, whether they are in the bucket, their depth and their mass."""
    place = start + tl.arange(0, _PLACES)
    code = tl.load(codes_ptr + place, mask=place < listed, other=0)
    depth = top - logit_of(code, BITS)
    return code, (place < listed) & (bucket_of(depth) == bucket), depth, mass_of(depth, UNIT)


@triton.jit
def _through(
    codes_ptr,
    listed,
    bucket,
    top,
    last,
    COUNT: tl.constexpr,
    UNIT: tl.constexpr,
    BITS: tl.constexpr,
):
    """Mass, or with COUNT the number, of a bucket's tokens with codes up to ``last``."""
    total = tl.zeros([_PLACES], tl.int64)
    for start in range(0, listed, _PLACES):
        code, member, _, mass = _listed(codes_ptr, start, listed, bucket, top, UNIT, BITS)
        total += tl.where(member & (code <= last), tl.where(COUNT, 1, mass), 0)
    return tl.sum(total, 0)


@triton.jit
def _shallow(codes_ptr, listed, bucket, top, deepest, UNIT: tl.constexpr, BITS: tl.constexpr):
    """Mass of a bucket's tokens that are no deeper than ``deepest``."""
    total = tl.zeros([_PLACES], tl.int64)
    for start in range(0, listed, _PLACES):
        _, member, depth, mass = _listed(codes_ptr, start, listed, bucket, top, UNIT, BITS)
        total += tl.where(member & (depth <= deepest), mass, 0)
    return tl.sum(total, 0)


@triton.jit
def _parted(
    codes_ptr,
    listed,
    bucket,
    top,
    middle,
    COUNT: tl.constexpr,
    UNIT: tl.constexpr,
    BITS: tl.constexpr,
):
    """Mass, or with COUNT the number, of a bucket's tokens with codes up to ``middle``, the last of
    these codes and the first after them."""
    total = tl.zeros([_PLACES], tl.int64)
    last = tl.zeros([_PLACES], tl.int64)
    following = tl.full([_PLACES], _BEYOND, tl.int64)
    for start in range(0, listed, _PLACES):
        code, member, _, mass = _listed(codes_ptr, start, listed, bucket, top, UNIT, BITS)
        upper = member & (code > middle)
        lower = member & (code <= middle)
        total += tl.where(lower, tl.where(COUNT, 1, mass), 0)
        last = tl.where(lower, tl.maximum(last, code), last)
        following = tl.where(upper, tl.minimum(following, code), following)
    return tl.sum(total, 0), tl.max(last, 0), tl.min(following, 0)


@triton.jit
def _reaching(
    codes_ptr,
    listed,
    bucket,
    top,
    target,
    COUNT: tl.constexpr,
    UNIT: tl.constexpr,
    BITS: tl.constexpr,
):
    """The code of the first token of a bucket at which the cumulative mass (or number) reaches a
    target.

    The mass of a bucket is spread nearly evenly over its codes. So the search tries the code where
    an even spread would reach the target, alternating with bisection in case it is uneven.
    """
    through, last, _ = _parted(codes_ptr, listed, bucket, top, _BEYOND - 1, COUNT, UNIT, BITS)
    _, _, first = _parted(codes_ptr, listed, bucket, top, -1, COUNT, UNIT, BITS)
    before = through * 0
    turn = 0
    while first < last:
        part = (target - before).to(tl.float64) / tl.maximum(through - before, 1).to(tl.float64)
        part = tl.where(turn % 2 == 0, part, 0.5)
        middle = first + ((last - first).to(tl.float64) * part).to(tl.int64)
        middle = tl.maximum(tl.minimum(middle, last - 1), first)
        total, lower, upper = _parted(codes_ptr, listed, bucket, top, middle, COUNT, UNIT, BITS)
        if total >= target:
            last, through = lower, total
        else:
            first, before = upper, total
        turn += 1
    return first


@triton.jit(do_not_specialize=["vocabulary", "tiles"])
def choose_kernel(
    best_ptr,
    best_id_ptr,
    finite_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    position_ptr,
    mass_ptr,
    count_ptr,
    listed_ptr,
    codes_ptr,
    token_ptr,
    sound_ptr,
    vocabulary,
    tiles,
    TILES: tl.constexpr,
    UNIT: tl.constexpr,
    TOKEN_BITS: tl.constexpr,
    DRAWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows,). Stores the token of a row, and whether all its logits are finite."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    at = row * tiles + tile
    wait_for_producers(PDL)
    best = tl.load(best_ptr + at, mask=tile < tiles, other=float("-inf"))
    largest = tl.max(best, 0)
    first = tl.load(best_id_ptr + at, mask=tile < tiles, other=0)
    token = tl.min(tl.where((tile < tiles) & (best == largest), first, vocabulary - 1), 0)
    token = token.to(tl.int64)
    finite = tl.min(tl.load(finite_ptr + at, mask=tile < tiles, other=1), 0)
    if DRAWS:
        temperature = tl.load(temperature_ptr + row)
        if temperature > 0.0:
            top = scaled(largest, temperature)
            token = _draw(
                top,
                tl.load(top_k_ptr + row),
                tl.load(top_p_ptr + row),
                tl.load(min_p_ptr + row),
                uniform(tl.load(seed_ptr + row), tl.load(position_ptr + row)),
                mass_ptr + row * BUCKETS,
                count_ptr + row * BUCKETS,
                codes_ptr + row * vocabulary,
                tl.load(listed_ptr + row),
                UNIT,
                TOKEN_BITS,
            )
    tl.store(token_ptr + row, token)
    tl.store(sound_ptr + row, finite.to(tl.uint8))


@triton.jit
def _draw(
    top,
    top_k,
    top_p,
    min_p,
    number,
    mass_ptr,
    count_ptr,
    codes_ptr,
    listed,
    UNIT: tl.constexpr,
    BITS: tl.constexpr,
):
    """The drawn token. Truncation keeps the first candidates in order, so the kept mass determines
    the last of them."""
    bucket = tl.arange(0, BUCKETS)
    mass = tl.load(mass_ptr + bucket)
    up_to = tl.cumsum(mass, 0)
    kept = tl.sum(mass, 0)
    if top_k > 0:
        count = tl.load(count_ptr + bucket)
        at = first_with(tl.cumsum(count, 0).to(tl.int64), top_k)
        left = top_k - mass_before(count.to(tl.int64), at)
        last = _reaching(codes_ptr, listed, at, top, left, True, UNIT, BITS)
        kept = _through(codes_ptr, listed, at, top, last, False, UNIT, BITS)
        kept += mass_before(mass, at)
    if top_p < 1.0:
        target = share(kept, top_p)
        at = first_with(up_to, target)
        before = mass_before(mass, at)
        last = _reaching(codes_ptr, listed, at, top, target - before, False, UNIT, BITS)
        kept = before + _through(codes_ptr, listed, at, top, last, False, UNIT, BITS)
    if min_p > 0.0:
        deepest = -tl.log(min_p)
        at = bucket_of(deepest)
        likely = _shallow(codes_ptr, listed, at, top, deepest, UNIT, BITS)
        kept = tl.minimum(kept, mass_before(mass, at) + likely)
    target = target_of(kept, number)
    at = first_with(up_to, target)
    target -= mass_before(mass, at)
    code = _reaching(codes_ptr, listed, at, top, target, False, UNIT, BITS)
    return code & ((1 << BITS) - 1)
