"""Scores of tokens, against attention in float64 over queries and keys that were never rotated."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from sparse_inputs import sparse_case

from kinfolk.nn.prompt_reading import SCORING_ROWS, PromptReading, without_rope
from kinfolk_kernels.flash_prefill.op import FlashPrefillArguments, flash_prefill
from kinfolk_kernels.paged_attention.epilogue import Epilogue
from kinfolk_kernels.paged_attention.op import GatedAttentionArguments
from kinfolk_kernels.stored_kind import StoredKind

CPU = torch.device("cpu")
F32 = 2e-5
"""Relative, of float32 products of vectors that were rotated and turned back."""


def tables(positions, dims, scale=1.0):
    angle = torch.arange(positions)[:, None] * 10.0 ** -torch.linspace(0, 2, dims // 2)
    return (angle.cos() * scale).float(), (angle.sin() * scale).float()


def rotated(x, cos_sin):
    """x [n, heads, dim] at positions 0 ... n - 1, as complex numbers."""
    cos, sin = cos_sin
    half = cos.shape[1]
    turn = torch.complex(cos[: len(x)].double(), sin[: len(x)].double())[:, None]
    y = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double()) * turn
    return torch.cat([y.real, y.imag, x[..., 2 * half :].double()], -1).float()


def paged(keys, blocks):
    """Keys [n, heads, dim] in shuffled blocks, and NaN where nothing was written."""
    count = -(-len(keys) // 64)
    pool = torch.full((count + 3, keys.shape[1], 64, keys.shape[2]), torch.nan)
    for chunk in range(count):
        part = keys[chunk * 64 : chunk * 64 + 64]
        pool[blocks[chunk], :, : len(part)] = part.transpose(0, 1)
    return pool


def expected_scores(layers, length):
    """One row, layer and head at a time."""
    rows = min(SCORING_ROWS, length)
    best = torch.zeros(rows, length, dtype=torch.float64)
    for q, k, scale in layers:
        group = q.shape[1] // k.shape[1]
        for row in range(rows):
            at = length - rows + row
            for head in range(q.shape[1]):
                seen = k[: at + 1, head // group].double() @ q[at, head].double() * scale
                share = torch.zeros(length, dtype=torch.float64)
                share[: at + 1] = seen.softmax(0)
                best[row] = torch.maximum(best[row], share)
    return best.mean(0)


@pytest.mark.parametrize("length", [1, 7, 8, 64, 65, 150])
@pytest.mark.parametrize("slices", [1, 3])
def test_a_score_is_the_largest_share_of_attention_of_the_last_rows(length, slices):
    torch.manual_seed(length)
    heads, kv_heads, dim, rope = 4, 2, 16, 8
    reading, calls, layers = PromptReading(), [], []
    step = max(SCORING_ROWS, -(-length // slices))
    bounds = [(start, min(start + step, length)) for start in range(0, length, step)]
    if len(bounds) > 1 and bounds[-1][1] - bounds[-1][0] < SCORING_ROWS:
        bounds[-2:] = [(bounds[-2][0], length)]

    def dense(*operands):
        calls.append(operands)
        return "mixed"

    for layer, magnitude in enumerate((1.0, 1.3)):
        q, k = torch.randn(length, heads, dim), torch.randn(length, kv_heads, dim)
        layers.append((q, k, 0.3 + layer))
        cos_sin = tables(length, rope, magnitude)
        blocks = torch.randperm(-(-length // 64) + 2) + 1
        pool = paged(rotated(k, cos_sin), blocks)
        arguments = GatedAttentionArguments(
            heads, StoredKind.of(pool), StoredKind.of(pool), None, 0.3 + layer, q.dtype, CPU
        )
        attend = reading.attention(dense, arguments, cos_sin, ops=None)
        layers[-1] += (attend, rotated(q, cos_sin), pool, blocks)
    for start, stop in bounds:
        reading.begin(start, stop - start, length)
        for *_, attend, q, pool, blocks in layers:
            count = -(-stop // 64)
            table = SimpleNamespace(blocks=blocks[None, :count].int(), lengths=(count,))
            assert attend(q[start:stop], (pool, pool), None, None, table, "epilogue") == "mixed"
    assert len(calls) == 2 * len(bounds), "attention is computed as ever"
    found = reading.scores()
    expected = expected_scores([each[:3] for each in layers], length)
    assert found.shape == (length,)
    assert torch.allclose(found.double(), expected, rtol=F32, atol=1e-7)


def test_turning_back_is_the_inverse_of_the_rotary_embedding():
    x = torch.randn(50, 3, 12)
    cos_sin = tables(50, 8, 1.7)
    found = without_rope(rotated(x, cos_sin), torch.arange(50), cos_sin)
    assert torch.allclose(found, x, rtol=1e-5, atol=1e-6)
    assert without_rope(x, torch.arange(50), None) is x


def test_layers_with_a_window_are_not_looked_at_and_coded_keys_are_refused():
    reading = PromptReading()
    kind = StoredKind(2, 16, torch.float32)
    windowed = GatedAttentionArguments(4, kind, kind, 128, 1.0, torch.float32, CPU)

    def dense(*_):
        return "mixed"

    assert reading.attention(dense, windowed, None, ops=None) is dense
    assert reading.layers == 0
    coded = StoredKind(2, 32, None, "q8_0")
    arguments = GatedAttentionArguments(4, coded, kind, None, 1.0, torch.float32, CPU)
    with pytest.raises(ValueError, match="keys stored as q8_0"):
        reading.attention(dense, arguments, None, ops=None)


def test_a_sparse_reading_attends_to_the_kept_blocks_and_scores_with_all_keys():
    """Its attention is that of the op, gates and all; a reference alone is no reason to use it."""
    length, cut = 1100, 1024
    case = sparse_case(length, heads=2, kv_heads=1, seed=1)
    kinds = [StoredKind.of(pool) for pool in case.pools]
    arguments = GatedAttentionArguments(2, *kinds, None, 0.125, torch.float32, CPU)
    gate = torch.randn(length, 2, 64)

    def dense(*_):
        return "dense"

    def run(*operands):
        return flash_prefill(*operands)

    def bind(function):
        return SimpleNamespace(bind=lambda op, wanted: partial(function, wanted))

    plain = PromptReading(sparse=True)
    plain.begin(0, 64, length)
    attend = plain.attention(dense, arguments, None, bind(flash_prefill))
    assert attend(*operands(case, 0, 64), None) == "dense"
    reading = PromptReading(sparse=True)
    attend = reading.attention(dense, arguments, None, bind(run))
    found = []
    for start, stop in ((0, cut), (cut, length)):
        reading.begin(start, stop - start, length)
        epilogue = Epilogue(gate[start:stop])
        found.append(attend(*operands(case, start, stop), epilogue).values)
    wanted = FlashPrefillArguments(2, *kinds, 0.125, torch.float32, CPU)
    expected = flash_prefill(wanted, case.q, case.pools, case.blocks, 0, length)
    assert torch.allclose(torch.cat(found), expected * gate.sigmoid(), rtol=1e-5, atol=1e-5)
    scores = expected_scores([(case.q, case.k, 0.125)], length)
    assert torch.allclose(reading.scores().double(), scores, rtol=F32, atol=1e-7)


def operands(case, start, stop):
    count = -(-stop // 64)
    table = SimpleNamespace(blocks=case.blocks[None, :count], lengths=(count,))
    return case.q[start:stop], case.pools, None, None, table


def test_without_a_look_there_are_no_scores():
    with pytest.raises(RuntimeError, match="no layer"):
        PromptReading().scores()
