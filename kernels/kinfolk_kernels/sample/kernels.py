"""The kernels that sample a token of each row; triton_backend.py describes the algorithm."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.sample.noise import ERROR, noise, noise_words, rough_noise
from kinfolk_kernels.sample.places import (
    BUCKETS,
    bucket_of,
    code_of,
    deepest_of,
    first_with,
    logit_of,
    marks,
    mass_before,
    mass_of,
    scaled,
    share,
)

_PLACES = tl.constexpr(1024)
"""Listed candidates that are processed at once."""

_BEYOND = tl.constexpr(2**62)
"""Greater than every code."""

_LAST_TOKEN = tl.constexpr(2**31 - 1)
"""No token."""

_NEAR = tl.constexpr(2 * ERROR.value)
"""How far below the largest key in float32 the largest in float64 may be."""


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


@triton.jit
def _cuts(top_k, top_p):
    """Whether the order of candidates decides which are left, for which buckets are needed."""
    return (top_k > 0) | (top_p < 1.0)


@triton.jit(do_not_specialize=["vocabulary", "tiles"])
def weigh_kernel(
    logits_ptr,
    best_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
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
    """Grid (tiles, rows). Where a row has a top-k or a top-p, adds the mass of a tile's tokens to
    the buckets of the row, and with a top-k counts them there."""
    start_dependents(PDL)
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = token < vocabulary
    wait_for_producers(PDL)
    temperature, top_k = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row)
    if (temperature > 0.0) & _cuts(top_k, tl.load(top_p_ptr + row)):
        top = scaled(_largest(best_ptr, row, tiles, TILES), temperature)
        x = tl.load(logits_ptr + row * logits_row + token, mask=inside, other=float("-inf"))
        depth = top - scaled(x, temperature)
        mass = mass_of(depth, UNIT)
        at = row * BUCKETS + bucket_of(depth)
        tl.atomic_add(mass_ptr + at, mass, mask=inside & (mass > 0), sem="relaxed")
        if top_k > 0:
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
    """Grid (tiles, rows). Puts codes into the row's list, in any order: those of the tokens in
    decisive buckets, and of others that are left, those whose keys are largest in the tile, up to
    the error of float32."""
    start_dependents(PDL)
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = token < vocabulary
    wait_for_producers(PDL)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0.0:
        top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
        k_at, p_from, p_to, whole = -1, -1, -1, BUCKETS
        if _cuts(top_k, top_p):
            at = row * BUCKETS
            k_at, p_from, p_to, whole = marks(mass_ptr + at, count_ptr + at, top_k, top_p)
        top = scaled(_largest(best_ptr, row, tiles, TILES), temperature)
        x = tl.load(logits_ptr + row * logits_row + token, mask=inside, other=float("-inf"))
        y = scaled(x, temperature)
        depth = top - y
        at = bucket_of(depth)
        wanted = inside & ((at == k_at) | ((at >= p_from) & (at <= p_to)))
        left = inside & (at < whole) & (depth <= deepest_of(tl.load(min_p_ptr + row)))
        if tl.max(left.to(tl.int32), 0) > 0:
            seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
            pair = tl.program_id(0) * (TILE // 2) + tl.arange(0, TILE // 2)
            a, b, c, d = noise_words(seed, position, pair)
            both = tl.join(rough_noise(a, b), rough_noise(c, d))
            key = tl.where(left, tl.reshape(both, [TILE]) - depth, float("-inf"))
            wanted = wanted | (left & (key >= tl.max(key, 0) - _NEAR))
        counter = listed_ptr + row + tl.zeros([TILE], tl.int32)
        place = tl.atomic_add(counter, 1, mask=wanted, sem="relaxed")
        code = code_of(y, token, TOKEN_BITS)
        tl.store(codes_ptr + row * vocabulary + place, code, mask=wanted)


@triton.jit
def _listed(codes_ptr, start, listed, bucket, top, UNIT: tl.constexpr, BITS: tl.constexpr):
    """A part of a list: codes, whether they are in the bucket, and their mass."""
    place = start + tl.arange(0, _PLACES)
    code = tl.load(codes_ptr + place, mask=place < listed, other=0)
    depth = top - logit_of(code, BITS)
    return code, (place < listed) & (bucket_of(depth) == bucket), mass_of(depth, UNIT)


@triton.jit
def _through(codes_ptr, listed, bucket, top, last, UNIT: tl.constexpr, BITS: tl.constexpr):
    """Mass of a bucket's tokens with codes up to ``last``."""
    total = tl.zeros([_PLACES], tl.int64)
    for start in range(0, listed, _PLACES):
        code, member, mass = _listed(codes_ptr, start, listed, bucket, top, UNIT, BITS)
        total += tl.where(member & (code <= last), mass, 0)
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
        code, member, mass = _listed(codes_ptr, start, listed, bucket, top, UNIT, BITS)
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
            listed, codes = tl.load(listed_ptr + row), codes_ptr + row * vocabulary
            last = tl.full([], _BEYOND, tl.int64)
            top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
            if _cuts(top_k, top_p):
                mass, count = mass_ptr + row * BUCKETS, count_ptr + row * BUCKETS
                last = _last(top, top_k, top_p, mass, count, codes, listed, UNIT, TOKEN_BITS)
            deepest = deepest_of(tl.load(min_p_ptr + row))
            seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
            drawn = _drawn(codes, listed, top, last, deepest, seed, position, TOKEN_BITS)
            # None is drawn where logits are not finite.
            token = tl.where(drawn < vocabulary, drawn, token)
    tl.store(token_ptr + row, token)
    tl.store(sound_ptr + row, finite.to(tl.uint8))


@triton.jit
def _last(
    top,
    top_k,
    top_p,
    mass_ptr,
    count_ptr,
    codes_ptr,
    listed,
    UNIT: tl.constexpr,
    BITS: tl.constexpr,
):
    """The code of the last candidate that top-k and top-p leave."""
    bucket = tl.arange(0, BUCKETS)
    mass = tl.load(mass_ptr + bucket)
    kept = tl.sum(mass, 0)
    last = tl.full([], _BEYOND, tl.int64)
    if top_k > 0:
        count = tl.load(count_ptr + bucket)
        at = first_with(tl.cumsum(count, 0).to(tl.int64), top_k)
        room = top_k - mass_before(count.to(tl.int64), at)
        last = _reaching(codes_ptr, listed, at, top, room, True, UNIT, BITS)
        kept = _through(codes_ptr, listed, at, top, last, UNIT, BITS) + mass_before(mass, at)
    if top_p < 1.0:
        target = share(kept, top_p)
        at = first_with(tl.cumsum(mass, 0), target)
        target -= mass_before(mass, at)
        last = _reaching(codes_ptr, listed, at, top, target, False, UNIT, BITS)
    return last


@triton.jit
def _drawn(codes_ptr, listed, top, last, deepest, seed, position, BITS: tl.constexpr):
    """The token with the largest key, the lowest id of equals, among those listed that truncation
    leaves. Keys are float64; those that the error of float32 does not hide from a larger one are
    not computed."""
    best = tl.full([], float("-inf"), tl.float64)
    drawn = tl.full([], _LAST_TOKEN, tl.int64)
    bound = tl.full([], float("-inf"), tl.float32)
    for start in range(0, listed, _PLACES):
        place = start + tl.arange(0, _PLACES)
        code = tl.load(codes_ptr + place, mask=place < listed, other=0)
        y = logit_of(code, BITS)
        token = code & ((1 << BITS) - 1)
        left = (place < listed) & (code <= last) & (top - y <= deepest)
        a, b, c, d = noise_words(seed, position, token >> 1)
        odd = (token & 1) > 0
        high, low = tl.where(odd, c, a), tl.where(odd, d, b)
        rough = tl.where(left, rough_noise(high, low) - (top - y), float("-inf"))
        largest = tl.max(rough, 0)
        if largest > bound:
            key = y.to(tl.float64) - top.to(tl.float64) + noise(high, low)
            key = tl.where(left, key, float("-inf"))
            found = tl.max(key, 0)
            first = tl.min(tl.where(left & (key == found), token, _LAST_TOKEN), 0)
            first = tl.where(found == best, tl.minimum(first, drawn), first)
            drawn = tl.where(found >= best, first, drawn)
            best = tl.maximum(best, found)
            bound = tl.maximum(bound, largest - _NEAR)
    return drawn
