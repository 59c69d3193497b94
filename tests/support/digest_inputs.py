"""Fixtures of the tests of compressed keys and of the scores of chunks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kinfolk_kernels.chunk_digest.op import KeyDigest
from kinfolk_kernels.codecs import Coded, Stored, encode, rotate
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
