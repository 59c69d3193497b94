"""The steps after attention: gates, types and int8 rows."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.codecs import Coded, decode, encode, rotate
from kinfolk_kernels.int8_rows import dequantize
from kinfolk_kernels.paged_attention import op as reference
from kinfolk_kernels.paged_attention import torch_backend as fast
from kinfolk_kernels.paged_attention.epilogue import Epilogue, finish
from kinfolk_kernels.paged_attention.op import GatedAttentionArguments

BACKENDS = pytest.mark.parametrize("module", [reference, fast], ids=["ref", "torch"])
HEADS, DIM = 2, 64
SCALE = DIM**-0.5
F32 = (1e-6, 1e-5)


@pytest.fixture
def y(numbers):
    return numbers(5, HEADS, DIM)


def test_the_gate_is_a_sigmoid_and_the_factor_is_not(y, numbers, assert_near):
    gate, factor = numbers(5, HEADS, DIM), numbers(5, HEADS, 1)
    found = finish(y, Epilogue(gate, factor), torch.float32)
    expected = y.double() / (1 + (-gate.double()).exp()) * factor.double()
    assert_near(found.values, expected, F32)
    assert found.int8 is None


def test_a_factor_may_be_one_an_element(y, numbers):
    factor = numbers(5, HEADS, DIM)
    assert torch.equal(finish(y, Epilogue(factor=factor), torch.float32).values, y * factor)


def test_a_factor_may_come_before_its_curve(y, numbers, assert_near):
    factor = 30 * numbers(5, HEADS, 1)
    found = finish(y, Epilogue(factor=factor, activation="softplus"), torch.float32).values
    assert_near(found, y.double() * factor.double().exp().log1p(), F32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None])
def test_the_result_has_the_type_that_was_asked_for(y, dtype):
    found = finish(y, Epilogue(dtype=dtype), torch.float16).values
    assert torch.equal(found, y.to(dtype or torch.float16))


def test_int8_rows_are_those_of_the_unrounded_result(y, numbers, assert_near):
    gate = numbers(5, HEADS, DIM)
    mixed = finish(y, Epilogue(gate, dtype=torch.bfloat16, int8=True), torch.float32)
    wide = finish(y, Epilogue(gate), torch.float32).values.flatten(1)
    back = dequantize(mixed.int8)
    limit = wide.unflatten(1, (-1, 64)).abs().amax(2, keepdim=True) / 127 * 0.501
    assert ((back - wide).unflatten(1, (-1, 64)).abs() <= limit).all()


@BACKENDS
def test_gated_attention_is_attention_and_its_epilogue(
    steps, memories, numbers, assert_near, module
):
    rows = steps.build(steps.certain(70, 3), steps.random_tree(5, 6), places=1)
    memory = memories.fill(rows, 1, numbers, (DIM, DIM))
    q, gate = numbers(9, HEADS, DIM), numbers(9, HEADS, DIM)
    rest = (memory.pools, memory.arenas, rows, rows.table, None, SCALE)
    arguments = GatedAttentionArguments.of(q, memory.pools, None, SCALE)
    operands = (q, memory.pools, memory.arenas, rows, rows.table, Epilogue(gate))
    found = module.gated_attention(arguments, *operands).values
    assert_near(found, module.paged_attention(q, *rest) * gate.sigmoid(), F32)


@BACKENDS
@pytest.mark.parametrize("rotated", [False, True])
def test_coded_keys_and_values_are_read_as_the_numbers_they_stand_for(
    steps, memories, numbers, assert_near, module, rotated
):
    rows = steps.build(steps.certain(60, 9), steps.random_tree(66, 5), places=1)
    memory = memories.fill(rows, 1, numbers, (DIM, DIM))

    def code(x, format):
        wide = x.nan_to_num(0)
        return Coded(format, *encode(format, rotate(wide) if rotated else wide), rotated)

    pools, arenas = (
        (code(keys, "q8_0"), code(values, "q4_0")) for keys, values in (memory.pools, memory.arenas)
    )
    q = numbers(14, HEADS, DIM)
    if rotated:
        q = rotate(q)
    found = module.paged_attention(q, pools, arenas, rows, rows.table, None, SCALE)
    read = decoded(memories, rows, memory, rotated)
    expected = memories.exact(q, read, rows, None, SCALE)
    assert_near(found, rotate(expected.float()) if rotated else expected, (1e-4, 1e-3))


def decoded(memories, rows, memory, rotated):
    """The same memory after a round trip through the codecs."""

    def trip(x, format):
        return decode(format, *encode(format, rotate(x) if rotated else x))

    return memories.place(rows, [(trip(k, "q8_0"), trip(v, "q4_0")) for k, v in memory.sequences])
