"""The tensors of state: an operation changes its own places and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.errors import StateError
from kinfolk.plans import (
    Codec,
    Paged,
    Recurrent,
    RecurrentTensor,
    Section,
    Shared,
    StateLimits,
    StatePlan,
)
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyRecurrent,
    DropSaved,
    LoadBlock,
    MapChunk,
    SaveBlock,
    UnmapChunk,
)
from kinfolk.state.state import State
from kinfolk_kernels.codecs import decode, encode, numbers

PLAN = StatePlan(
    (
        Paged((Section("k", 2, 3, Codec("f32")), Section("v", 2, 5, Codec("bf16")))),
        Recurrent((RecurrentTensor("s", (2, 3)), RecurrentTensor("c", (4,), "f16"))),
        Paged((Section("k", 1, 7, Codec("f16")),), window=100),
        Shared(0),
    )
)
LIMITS = StateLimits(slots=3, checkpoints=2, blocks=(5, 4), context=320, step_rows=64, tree_rows=70)


@pytest.fixture
def state():
    """A state full of random bytes."""
    made = State(PLAN, LIMITS, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for data in tensors(made):
        raw = data.view(torch.uint8)
        raw.copy_(torch.randint(0, 256, raw.shape, generator=generator, dtype=torch.uint8))
    return made


def tensors(state):
    """All storage: pools, arenas, recurrent tensors."""
    return [
        *(pool.data for pool in state.pools),
        *(pool.arena for pool in state.pools),
        *state.recurrent(1).values(),
    ]


def raw(state):
    return [data.view(torch.uint8).clone() for data in tensors(state)]


def test_new_state_is_zero_and_finite():
    """Memory that was never written is read and masked."""
    made = State(PLAN, LIMITS, torch.device("cpu"))
    assert all(not data.any() for data in raw(made))


def test_views_have_the_shapes_and_types_of_their_sections(state):
    first, windowed = state.paged(0), state.paged(2)
    assert (first.pool_index, first.window) == (0, None)
    assert (windowed.pool_index, windowed.window) == (1, 100)
    assert first.pool("k").shape == (6, 2, 64, 3)
    assert first.pool("v").shape == (6, 2, 64, 5)
    assert windowed.pool("k").shape == (5, 1, 64, 7)
    types = [first.pool("k").dtype, first.pool("v").dtype, windowed.pool("k").dtype]
    assert types == [torch.float32, torch.bfloat16, torch.float16]
    assert first.arena("k").shape == (2, 2, 64, 3), "70 rows of a tree take two blocks"


def test_recurrent_tensors_have_a_place_for_each_slot_checkpoint_and_the_dummy(state):
    held = state.recurrent(1)
    assert held["s"].shape == (6, 2, 3)
    assert held["c"].shape == (6, 4)
    assert [held["s"].dtype, held["c"].dtype] == [torch.float32, torch.float16]


def test_a_layer_that_shares_reads_the_memory_of_its_owner(state):
    assert state.paged(3).pool("k").data_ptr() == state.paged(0).pool("k").data_ptr()


def test_writing_through_one_view_leaves_all_others(state):
    before = raw(state)
    state.paged(0).pool("v")[4, 1, 63] = 1.5
    changed = [int((old != new).sum()) for old, new in zip(before, raw(state), strict=True)]
    assert changed[0] in range(1, 11)
    assert changed[1:] == [0] * (len(changed) - 1)


# -- operations -----------------------------------------------------------------------------------


def test_tables_are_mapped_and_unmapped(state):
    state.apply([MapChunk(0, 2, 0, 5), MapChunk(0, 2, 3, 1), MapChunk(1, 2, 3, 4)])
    assert state.pools[0].place(2, 3 * 64 + 7) == 1 * 64 + 7
    assert state.pools[1].place(2, 3 * 64 + 7) == 4 * 64 + 7
    state.apply([UnmapChunk(0, 2, 0)])
    assert state.pools[0].tables[2] == {3: 1}
    with pytest.raises(StateError, match="position 0 of slot 2 has no block"):
        state.pools[0].place(2, 0)


def test_clearing_a_slot_leaves_the_others(state):
    state.apply([MapChunk(0, 1, 0, 2), MapChunk(0, 2, 0, 3), MapChunk(1, 1, 0, 2)])
    before = raw(state)
    state.apply([ClearSlot(1)])
    assert [pool.tables[1] for pool in state.pools] == [{}, {}]
    assert state.pools[0].tables[2] == {0: 3}
    for old, new in zip(before[4:], raw(state)[4:], strict=True):
        assert not new[1].any()
        assert torch.equal(new[[0, 2, 3, 4, 5]], old[[0, 2, 3, 4, 5]])
    assert all(torch.equal(a, b) for a, b in zip(before[:4], raw(state)[:4], strict=True))


def test_copies_move_bytes_and_nothing_else(state):
    before = raw(state)
    state.apply([CopyBlock(1, 2, 4), CopyRecurrent(1, 5)])
    before[1][4] = before[1][2]
    for tensor in before[4:]:
        tensor[5] = tensor[1]
    assert all(torch.equal(a, b) for a, b in zip(before, raw(state), strict=True))


class Calls(TorchDispatchMode):
    """Counts calls that write tensors."""

    def __init__(self):
        super().__init__()
        self.writes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.writes += func._schema.is_mutable
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("operation", [ClearSlot(1), CopyRecurrent(1, 5)])
def test_recurrent_state_of_many_layers_changes_in_a_launch_for_each_type(operation):
    """A launch for each tensor would hold up the copies of a prefix that comes back."""
    plan = StatePlan((*PLAN.layers[:3], *PLAN.layers[1:2] * 48))
    made = State(plan, LIMITS, torch.device("cpu"))
    with Calls() as calls:
        made.apply([operation])
    assert calls.writes == 2


def test_recurrent_state_that_was_freed_is_not_what_is_cleared_later(state):
    state.apply([ClearSlot(1)])
    state.free()
    state.allocate()
    for tensor in state.recurrent(1).values():
        tensor.fill_(7)
    state.apply([ClearSlot(1)])
    for tensor in state.recurrent(1).values():
        assert not tensor[1].any()
        assert (tensor[2] == 7).all()


def test_the_table_of_a_long_prefix_fits_the_upload_of_a_captured_step():
    """Buffers of their own take the host as long as the rest of such a step."""
    plan = StatePlan((Paged((Section("k", 1, 1, Codec("f32")),)),))
    limits = StateLimits(1, 0, blocks=(512,), context=32768, step_rows=64, tree_rows=0)
    made = State(plan, limits, torch.device("cpu"))
    made.block_tables.take_changes()
    made.apply([MapChunk(0, 1, chunk, chunk + 1) for chunk in range(512)])
    changes = len(made.block_tables.take_changes().places)
    assert 1000 < changes <= made.block_tables.usual_changes


def test_saved_bytes_come_back_into_any_block(state):
    before = raw(state)
    state.apply([SaveBlock(0, 3, identity=77)])
    state.pools[0].data[3] = 0
    state.apply([LoadBlock(0, 77, 5), LoadBlock(0, 77, 1)])
    assert torch.equal(state.pools[0].data[5], before[0][3])
    assert torch.equal(state.pools[0].data[1], before[0][3])
    state.apply([DropSaved(77)])
    with pytest.raises(KeyError):
        state.apply([LoadBlock(0, 77, 2)])


def test_tree_rows_are_copied_as_raw_bytes(state):
    """NaN with a payload survives, which a copy through numbers would not promise."""
    state.paged(0).arena("k").view(torch.int32)[1, :, 5] = 0x7FC12345
    source, target = torch.tensor([69, 3]), torch.tensor([[2 * 64 + 63, 65], [4 * 64, 64 + 9]])
    arenas = [pool.arena.clone() for pool in state.pools]
    state.commit_tree(source, target)
    for layer, sections in ((0, ("k", "v")), (2, ("k",))):
        view, index = state.paged(layer), state.paged(layer).pool_index
        for name in sections:
            kind = torch.int32 if view.pool(name).dtype == torch.float32 else torch.int16
            pool, arena = view.pool(name).view(kind), view.arena(name).view(kind)
            for row, place in zip(source.tolist(), target[index].tolist(), strict=True):
                moved = pool[place // 64, :, place % 64]
                assert torch.equal(moved, arena[row // 64, :, row % 64])
    assert all(torch.equal(a, pool.arena) for a, pool in zip(arenas, state.pools, strict=True))


CODED = StatePlan(
    (
        Paged((Section("k", 2, 64, Codec("q8_0")), Section("v", 2, 32, Codec("q4_0")))),
        Paged((Section("k", 1, 96, Codec("q4_0", "hadamard")),), window=100),
    )
)


def full_of_codes():
    """A state with coded sections, and its stored numbers by (layer, section)."""
    made = State(CODED, LIMITS, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    stored = {}
    for layer, name in ((0, "k"), (0, "v"), (1, "k")):
        for view in (made.paged(layer).pool(name), made.paged(layer).arena(name)):
            shape = (*view.codes.shape[:3], view.dim)
            codes, scales = encode(view.format, torch.randn(shape, generator=generator))
            view.codes.copy_(codes)
            view.scales.copy_(scales)
            stored.setdefault((layer, name), []).append(decode(view.format, codes, scales))
    return made, stored


def test_coded_sections_are_codes_and_scales_that_lie_apart():
    state, stored = full_of_codes()
    assert state.paged(0).pool("k").codes.shape == (6, 2, 64, 64)
    assert state.paged(0).pool("v").codes.shape == (6, 2, 64, 16)
    assert state.paged(1).pool("k").scales.shape == (5, 1, 64, 3)
    assert [state.paged(n).pool("k").rotated for n in (0, 1)] == [False, True]
    # Read after all of them were written: none lies where another does.
    for (layer, name), (pool, arena) in stored.items():
        assert torch.equal(numbers(state.paged(layer).pool(name)), pool)
        assert torch.equal(numbers(state.paged(layer).arena(name)), arena)


def test_tree_rows_of_coded_sections_are_copied_with_their_scales():
    state, stored = full_of_codes()
    source, target = torch.tensor([69, 3]), torch.tensor([[2 * 64 + 63, 65], [4 * 64, 64 + 9]])
    state.commit_tree(source, target)
    for (layer, name), (pool, arena) in stored.items():
        view = state.paged(layer)
        for row, place in zip(source.tolist(), target[view.pool_index].tolist(), strict=True):
            pool[place // 64, :, place % 64] = arena[row // 64, :, row % 64]
        assert torch.equal(numbers(view.pool(name)), pool), "these rows, and no others"
        assert torch.equal(numbers(view.arena(name)), arena)


def test_blocks_of_coded_sections_fork_leave_and_come_back_byte_for_byte():
    state, stored = full_of_codes()
    before = state.pools[0].data.clone()
    state.apply([CopyBlock(0, 2, 5), SaveBlock(0, 3, 77)])
    state.pools[0].data[3] = 0xFF
    state.apply([LoadBlock(0, 77, 1)])
    assert torch.equal(state.pools[0].data[5], before[2])
    assert torch.equal(state.pools[0].data[1], before[3])
    for name in ("k", "v"):
        assert torch.equal(numbers(state.paged(0).pool(name))[1], stored[0, name][0][3])


@pytest.mark.parametrize("block", [0, 6, -1])
def test_a_table_with_a_block_that_does_not_exist_is_noticed(state, block):
    state.apply([MapChunk(0, 1, 0, block)])
    with pytest.raises(StateError, match="slot 1 in pool 0"):
        state.check_integrity()


def test_a_table_with_a_block_twice_is_noticed(state):
    state.apply([MapChunk(0, 1, 0, 2), MapChunk(0, 1, 1, 2)])
    with pytest.raises(StateError, match="slot 1 in pool 0"):
        state.check_integrity()
