"""The kernel that fetches experts, against the plain model and the reference."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from fetch_model import FetchModel, Scene, assert_follows, few_programs, scenes
from hypothesis import given, settings

from kinfolk_kernels import launch
from kinfolk_kernels.fetch import kernel as fetch_kernels
from kinfolk_kernels.fetch import op as reference
from kinfolk_kernels.fetch import triton_backend as kernel
from kinfolk_kernels.fetch.op import FetchArguments

pytestmark = pytest.mark.interpreter

_few_programs = few_programs(kernel)


@settings(max_examples=settings.default.max_examples // 4)
@given(scene=scenes(steps=4))
def test_every_step_does_what_the_plain_model_does(scene):
    assert_follows(kernel.fetch, scene)


@pytest.mark.parametrize(
    ("experts", "bays", "rows", "top_k"), [(256, 128, 1, 8), (256, 200, 16, 8), (100, 40, 70, 6)]
)
def test_sizes_of_models_give_the_numbers_of_the_reference(experts, bays, rows, top_k):
    model = FetchModel(Scene(experts, bays, 10, top_k, 0.99, rows, ((rows, rows),)))
    found = model.arguments()
    expected = copy.deepcopy(found)
    generator = torch.Generator().manual_seed(1)
    for step in range(2):
        ids = torch.rand(rows, experts, generator=generator).pow(3).argsort(1)[:, :top_k]
        for arguments, run in ((found, kernel.fetch), (expected, reference.fetch)):
            arguments.rows.fill_(rows - step)
            run(arguments, ids)
        for field in fields(found):
            a, b = getattr(found, field.name), getattr(expected, field.name)
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name
    assert found.traffic[1] > 0


@pytest.mark.parametrize("real", [9, torch.iinfo(torch.int32).max])
def test_the_last_program_resets_the_counter_and_rows_beyond_the_array_are_not_read(
    real, monkeypatch
):
    """Two of the programs have nothing to copy."""
    monkeypatch.setattr(kernel, "FETCH_PROGRAMS", 5)
    model = FetchModel(Scene(8, 4, 0, 2, 0.99, 0, ()))
    arguments = model.arguments()
    arguments.rows.fill_(real)
    ids = torch.tensor([[0, 1], [2, 3]])
    kernel.fetch(arguments, ids)
    model.step(ids, 2)
    model.check(arguments)
    assert not kernel.counters(ids.device).any()


def test_an_expert_leaves_after_the_empty_bay_of_its_number_is_taken():
    """Both are candidates in one element of the kernel's arrays."""
    model = FetchModel(Scene(6, 3, 0, 2, 0.5, 1, ()))
    model.where, model.owner = [1, 2, "far", "far", "far", "far"], [None, 0, 1]
    model.score = [np.float32(score) for score in (0.5, 2, 0, 0, 0, 0)]
    arguments = model.arguments()
    arguments.rows.fill_(1)
    ids = torch.tensor([[4, 3]])
    kernel.fetch(arguments, ids)
    model.step(ids, 1)
    model.check(arguments)
    assert arguments.expert_of_bay.tolist() == [3, 4, 1]


def test_it_says_what_it_cannot():
    made = FetchModel(Scene(8, 4, 0, 2, 0.99, 0, ())).arguments()

    def reason(**changes):
        return kernel.supports(replace(made, **changes)).reason

    assert reason() == ""
    assert reason(near=made.near[:0]) == ""
    assert "not torch.int32 on cpu" in reason(expert_of_bay=made.expert_of_bay.long())
    assert "score is torch.float64" in reason(score=made.score.double())
    assert "not contiguous" in reason(uses=made.uses.repeat_interleave(2)[::2])
    assert "at home of [32]" in reason(far=made.far[:, :32])
    assert "no multiple of 16" in reason(near=made.near[:, 3:35], far=made.far[:, :32])
    assert "no multiple of 16" in reason(near=made.near[:, :40], far=made.far[:, :40])
    assert "more than 1024" in reason(far=made.far[:1].expand(1025, 48))
    elsewhere = made.far.to("meta")
    assert "meta that cpu cannot read" in reason(far=elsewhere)


@pytest.fixture
def prefetched(monkeypatch):
    """``prefetched(arguments, ids, cache)`` runs a fetch as on a device that starts launches early,
    with a second-level cache of ``cache`` bytes; returns [(address, bytes)] of what it prefetches.
    """
    found = []

    def note(addresses, nbytes):
        addresses, sizes = np.broadcast_arrays(addresses.handle.data, nbytes.handle.data)
        pairs = zip(addresses.ravel().tolist(), sizes.ravel().tolist(), strict=True)
        found.extend((address, size) for address, size in pairs if size > 0)

    def run(arguments, ids, cache):
        found.clear()
        monkeypatch.setattr(kernel, "second_level_cache", lambda device: cache)
        kernel.fetch(arguments, ids)
        return list(found)

    monkeypatch.setattr(launch, "overlaps", lambda device: True)
    monkeypatch.setattr(fetch_kernels, "fetch_pieces_ahead", note)
    for name in ("start_dependents", "wait_for_producers", "fetch_ahead"):
        monkeypatch.setattr(fetch_kernels, name, lambda *_: None)
    return run


def covered(memory):
    """The bytes of a tensor, by their addresses."""
    return range(memory.data_ptr(), memory.data_ptr() + memory.nbytes)


def bytes_of(pieces):
    """All bytes of pieces, which do not overlap."""
    found = [address + n for address, size in pieces for n in range(size)]
    assert len(found) == len(set(found))
    return set(found)


def missing_layer(words):
    """A layer of eight experts, of which the first four are near, with records of so many words."""
    far = torch.randint(0, 256, (8, 4 * words), dtype=torch.uint8)
    return FetchArguments(
        far[:4].clone(),
        far,
        torch.arange(8),
        torch.arange(4, dtype=torch.int32),
        torch.zeros(8),
        torch.zeros(8, dtype=torch.int64),
        torch.zeros(3, dtype=torch.int64),
        torch.ones(1, dtype=torch.int32),
    )


@pytest.mark.parametrize("words", [12, 1024, 5000])
def test_while_records_come_near_ones_and_the_next_weights_are_prefetched(
    words, prefetched, monkeypatch
):
    """Each byte once by all programs together, and nothing else, whatever the sizes."""
    monkeypatch.setattr(kernel, "FETCH_PROGRAMS", 3)
    layer = missing_layer(words)
    weights = tuple(torch.zeros(size, dtype=torch.int32) for size in (4, 400_000, 1024, 1028))
    layer = replace(layer, next_weights=weights)
    ids = torch.tensor([[2, 6, 0], [1, 1, 1]])
    pieces = prefetched(layer, ids, 1 << 24)
    # Row 1 is padding, and expert 6 comes: it takes the bay of one that row 0 does not use.
    expected = [*weights, layer.near[2], layer.near[0]]
    assert bytes_of(pieces) == {byte for memory in expected for byte in covered(memory)}
    assert layer.traffic.tolist() == [2, 1, 0]
    assert torch.equal(layer.near[int(layer.bay_of_expert[6])], layer.far[6])
    assert all(address % 16 == 0 and size % 16 == 0 for address, size in pieces)


def test_nothing_is_prefetched_where_nothing_comes_or_for_many_rows(prefetched):
    layer = replace(missing_layer(64), next_weights=(torch.zeros(64, dtype=torch.int32),))
    assert prefetched(layer, torch.tensor([[3, 1]]), 1 << 24) == []
    pinned = replace(layer, pinned=4)
    assert prefetched(pinned, torch.tensor([[3, 7]]), 1 << 24) == []
    layer.rows.fill_(9)
    assert prefetched(layer, torch.tensor([[3, 7]] * 9), 1 << 24) == []
    assert prefetched(layer, torch.tensor([[3, 6]]), 1 << 24) != []


def test_what_is_prefetched_finds_room_in_the_cache(prefetched):
    weights = tuple(torch.zeros(size, dtype=torch.int32) for size in (64, 1024, 256, 512, 16, 128))
    layer = replace(missing_layer(256), next_weights=weights)
    # A half of 12 KiB is for weights: 4 KiB, 2 KiB, and of what is left nothing fits.
    assert kernel.prefetched_weights(layer, 12 << 10) == [weights[1], weights[3]]
    # 1 KiB more has room for the next ones in size. They stay in the order of their use.
    found = kernel.prefetched_weights(layer, 14 << 10)
    assert [weight.numel() for weight in found] == [1024, 256, 512]
    many = replace(layer, next_weights=tuple(weights[0].clone() for _ in range(9)))
    assert len(kernel.prefetched_weights(many, 1 << 24)) == kernel.PREFETCHED_WEIGHTS
    odd = torch.zeros(67, dtype=torch.int32)
    strange = (odd, odd[1:65], torch.zeros(8, 16, dtype=torch.int32).T)
    assert kernel.prefetched_weights(replace(layer, next_weights=strange), 1 << 24) == []
    # A third of 6 KiB is for records, 1 KiB each: those of the first two ids.
    pieces = prefetched(replace(layer, next_weights=()), torch.tensor([[3, 2, 1, 7]]), 6 << 10)
    assert bytes_of(pieces) == {*covered(layer.near[3]), *covered(layer.near[2])}
