"""Fixtures of the tests of compressed keys and of the scores of chunks."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from kinfolk_kernels.chunk_digest.op import KeyDigest
from kinfolk_kernels.codecs import Coded, Stored, encode, rotate
from kinfolk_kernels.row_layout import PREVIEWED
from kinfolk_kernels.rows import CHUNK_POSITIONS
from kinfolk_kernels.stored_kind import DTYPES


@pytest.fixture(scope="session")
def stored_keys() -> Callable[..., Stored]:
    """``stored_keys(format, dim, rotated)``: the keys of two heads in six blocks, in the middle of
    larger blocks of NaN; plain numbers are never rotated."""

    def within(plane: torch.Tensor) -> torch.Tensor:
        used = plane[0].numel()
        whole = torch.full((len(plane), 3 * used), torch.nan).to(plane.dtype)
        whole[:, used : 2 * used] = plane.flatten(1)
        return whole[:, used : 2 * used].view(plane.shape)

    def make(format: str, dim: int, rotated: bool) -> Stored:
        generator = torch.Generator().manual_seed(dim)
        mean = 2 * torch.randn(2, 1, dim, generator=generator)
        keys = mean + torch.randn(6, 2, CHUNK_POSITIONS, dim, generator=generator)
        if format in DTYPES:
            return within(keys.to(DTYPES[format]))
        codes, scales = encode(format, rotate(keys) if rotated else keys)
        return Coded(format, within(codes), within(scales), rotated)

    return make


@pytest.fixture(scope="session")
def assert_same_digest() -> Callable[[KeyDigest, KeyDigest], None]:
    """``assert_same_digest(found, expected)``: codes may differ by one in one number of a thousand,
    as a number that lies between two levels goes either way with its last bit; scales differ by a
    rounding, or by what such a code changes."""

    def codes_of(digest: KeyDigest) -> torch.Tensor:
        return torch.stack([digest.codes.int() >> 2 * part & 3 for part in range(4)])

    def check(found: KeyDigest, expected: KeyDigest) -> None:
        difference = (codes_of(found) - codes_of(expected)).abs()
        assert int(difference.max()) <= 1
        assert float((difference != 0).float().mean()) < 1e-3
        same = (difference == 0).all(0).all(-1)
        one, other = found.scales.double(), expected.scales.double()
        off = (one - other).abs() / other.abs().clamp_min(1e-6)
        assert float(off[same].max()) <= 1e-3
        assert float(off.max()) <= 0.1

    return check


@pytest.fixture(scope="session")
def scored_chunks() -> Callable[..., tuple[torch.Tensor, KeyDigest, torch.Tensor]]:
    """``scored_chunks(rows, layers, heads, kv_heads, dim, chunks)``: queries, random digests in
    more places than there are chunks, and the place of each chunk; every fourth has none."""

    def make(
        rows: int, layers: int, heads: int, kv_heads: int, dim: int, chunks: int
    ) -> tuple[torch.Tensor, KeyDigest, torch.Tensor]:
        generator = torch.Generator().manual_seed(rows + chunks)
        digest = KeyDigest.empty((chunks + 3, layers, kv_heads), dim, "cpu")
        digest.codes.random_(0, 256, generator=generator)
        digest.scales.copy_(torch.rand(digest.scales.shape, generator=generator))
        places = torch.randperm(chunks + 3, generator=generator)[:chunks].int()
        places[1::4] = -1
        return torch.randn(rows, layers, heads, dim, generator=generator), digest, places

    return make


@pytest.fixture(scope="session")
def query_steps() -> Callable[..., list[QueryStep]]:
    """``query_steps(seed, heads, dim, count=10)``: steps of sequences in slots 1 to 4, as the
    operands of ``write_queries`` without the ring, each with the queries that a slot commits in it.

    Sequences run certain rows, previewed ones, which the ring keeps like these, chains of drafts
    and trees, of which paths of any length are kept; steps have padding, which uses slot 0.
    """

    def make(seed: int, heads: int, dim: int, count: int = 10) -> list[QueryStep]:
        chance = random.Random(seed)
        length = dict.fromkeys(range(1, 5), 0)
        return [_query_step(chance, length, heads, dim) for _ in range(count)]

    return make


QueryStep = tuple[tuple[torch.Tensor, ...], dict[int, list[torch.Tensor]]]


def _query_step(chance: random.Random, length: dict[int, int], heads: int, dim: int) -> QueryStep:
    spans, positions, paths, slots = [], [], [], []
    rows_of: dict[int, list[int]] = {}
    for slot in chance.sample(sorted(length), chance.randint(1, 4)):
        first, start = len(positions), length[slot]
        drafted = chance.random() < 0.5
        if drafted:
            depths = [0]
            for _ in range(chance.randint(1, 11)):
                depths.append(chance.randint(1, max(depths) + 1))
            kept = [0]
            for row, depth in enumerate(depths):
                if depth == depths[kept[-1]] + 1 and chance.random() < 0.7:
                    kept.append(row)
        else:
            depths = list(range(chance.choice((1, 1, 2, 7, 8, 9, 30))))
            kept = depths
        positions += [start + depth for depth in depths]
        kind = 1 if drafted else chance.choice((0, 0, PREVIEWED))
        spans.append((first, len(depths), slot, kind))
        rows_of[slot] = [first + row for row in kept]
        if drafted:
            paths.append(rows_of[slot])
            slots.append(slot)
        length[slot] += len(kept)
    spans.append((0, 0, 0, 0))
    paths, slots = [*paths, []], [*slots, 0]
    width = max(map(len, paths)) + 2
    queries = torch.randn(len(positions) + 3, heads, dim)
    step = (
        queries,
        torch.tensor([*positions, 0, 0, 0]),
        torch.tensor(spans, dtype=torch.int32),
        torch.tensor([path + [-1] * (width - len(path)) for path in paths]),
        torch.tensor([len(path) for path in paths]),
        torch.tensor(slots),
    )
    return step, {slot: [queries[row] for row in rows] for slot, rows in rows_of.items()}
