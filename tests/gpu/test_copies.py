"""Copies on a stream of their own: however late one of the streams is, bytes are right, and the
host waits for none of it."""

from __future__ import annotations

import gc
import random
import time

import host_scenes
import numpy as np
import pytest
import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.loading import load_model
from kinfolk.plans import Codec, Paged, Recurrent, RecurrentTensor, Section, StateLimits, StatePlan
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.state.copies import CudaStreams
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyRecurrent,
    DropSaved,
    LoadBlock,
    LoadRecurrent,
    MapChunk,
    SaveBlock,
    SaveRecurrent,
    StoreRecurrent,
)
from kinfolk.state.slabs import Slabs
from kinfolk.state.state import State

pytestmark = pytest.mark.gpu

CYCLES = 3_000_000
"""Of the device's clock, a few milliseconds: longer than any copy here takes."""

PLAN = StatePlan(
    (
        Paged((Section("k", 2, 64, Codec("f16")), Section("v", 2, 64, Codec("q8_0")))),
        Recurrent((RecurrentTensor("s", (4, 32, 32)), RecurrentTensor("c", (5, 7), "bf16"))),
        Paged((Section("k", 1, 32, Codec("f16")),), window=100),
    )
)
BLOCKS, SLOTS, CHECKPOINTS = 6, 3, 3
LIMITS = StateLimits(
    slots=SLOTS, checkpoints=CHECKPOINTS, blocks=(BLOCKS, BLOCKS), context=320, step_rows=64
)


class LateStreams(CudaStreams):
    """Before each action of the stream that is late, the device sleeps."""

    def __init__(self, device: torch.device, late: str, cycles: int) -> None:
        super().__init__(device)
        self.late, self.cycles = late, cycles

    def on_main(self, action):
        if self.late == "main":
            torch.cuda._sleep(self.cycles)
        super().on_main(action)

    def on_copies(self, action):
        def slowly():
            if self.late == "copies":
                torch.cuda._sleep(self.cycles)
            action()

        return super().on_copies(slowly)


def places(state):
    """Every block and slot, as bytes [n, bytes]."""
    recurrent = [t.view(t.shape[0], -1).view(torch.uint8) for t in state.recurrent_tensors()]
    return [*(pool.data for pool in state.pools), *recurrent]


class Pair:
    """The same changes on the device and, one after the other, on the CPU."""

    def __init__(self, late: str, cycles: int = CYCLES) -> None:
        cuda = torch.device("cuda", 0)
        self.device = State(PLAN, LIMITS, cuda, LateStreams(cuda, late, cycles))
        self.host = State(PLAN, LIMITS, torch.device("cpu"))

    def apply(self, operations) -> None:
        self.host.apply(operations)
        torch.cuda.set_sync_debug_mode("error")
        try:
            self.device.apply(operations)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def step(self, blocks, slots, value: int) -> None:
        """What a step does: it changes blocks and slots by what they held."""
        for state in (self.host, self.device):
            tensors = places(state)
            actions = [(tensors[pool], block) for pool, block in blocks]
            actions += [(tensor, slot) for slot in slots for tensor in tensors[2:]]

            def change(actions=actions):
                for tensor, row in actions:
                    tensor[row].mul_(3).add_(value)

            state.copies.streams.on_main(change)

    def check(self) -> None:
        torch.cuda.synchronize()
        for found, expected in zip(places(self.device), places(self.host), strict=True):
            assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("late", ["copies", "main"])
def test_a_block_and_a_slot_leave_are_written_again_and_come_back(late):
    pair = Pair(late)
    pair.step([(0, 1), (1, 2)], [1, 4], 7)
    pair.apply([SaveBlock(0, 1, 10), SaveBlock(1, 2, 11), SaveRecurrent(4, 12), StoreRecurrent(4)])
    pair.apply([MapChunk(0, 1, 0, 1), MapChunk(1, 1, 0, 2)])
    pair.step([(0, 1), (1, 2)], [4], 9)
    pair.apply([ClearSlot(2), LoadBlock(0, 10, 3), LoadBlock(1, 11, 3), LoadRecurrent(12, 2)])
    pair.apply([MapChunk(0, 2, 0, 3), MapChunk(1, 2, 0, 3)])
    pair.step([(0, 3), (1, 3)], [2], 1)
    pair.apply([LoadBlock(0, 10, 5), CopyBlock(0, 5, 4), LoadRecurrent(12, 3), CopyRecurrent(3, 5)])
    pair.step([(0, 5), (0, 4)], [3, 5], 2)
    pair.check()


@pytest.mark.parametrize("late", ["copies", "main"])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_steps_saves_and_loads_keeps_the_bytes(late, seed):
    pair, chance = Pair(late), random.Random(seed)
    saved: dict[str, list] = {"block": [], "slot": []}
    for step in range(30):
        operations = []
        for number in range(chance.randint(0, 4)):
            identity, pool = 100 * step + number + 1, chance.randrange(2)
            one, other = chance.sample(range(1, BLOCKS + 1), 2)
            slot, target = chance.sample(range(1, SLOTS + CHECKPOINTS + 1), 2)
            kind = chance.choice(
                ["save", "keep", "load", "restore", "copy", "fork", "clear", "drop"]
            )
            if kind == "save":
                operations.append(SaveBlock(pool, one, identity))
                saved["block"].append((pool, identity))
            elif kind == "keep":
                operations.append(SaveRecurrent(slot, identity))
                saved["slot"].append(identity)
            elif kind == "load" and saved["block"]:
                pool, identity = chance.choice(saved["block"])
                operations.append(LoadBlock(pool, identity, one))
            elif kind == "restore" and saved["slot"]:
                operations.append(LoadRecurrent(chance.choice(saved["slot"]), slot))
            elif kind == "copy":
                operations.append(CopyBlock(pool, one, other))
            elif kind == "fork":
                operations.append(CopyRecurrent(slot, target))
            elif kind == "clear":
                operations.append(ClearSlot(chance.randint(1, SLOTS)))
            elif kind == "drop" and saved["slot"]:
                operations.append(DropSaved(saved["slot"].pop(0)))
        blocks = [(chance.randrange(2), chance.randint(1, BLOCKS)) for _ in range(2)]
        slots = [chance.randint(1, SLOTS + CHECKPOINTS)]
        operations += [MapChunk(pool, 1, 100 + step, block) for pool, block in blocks]
        operations += [StoreRecurrent(slot) for slot in slots]
        pair.apply(operations)
        pair.step(blocks, slots, step)
    pair.check()


def test_a_step_waits_for_a_load_once_a_table_has_the_block():
    """So a paged sequence's chunks are loaded while a step runs, and exchanged by the next plan."""
    pair = Pair("copies", 100 * CYCLES)
    pair.step([(0, 1)], [], 7)
    pair.apply([SaveBlock(0, 1, 10)])
    torch.cuda.synchronize()
    pair.apply([LoadBlock(0, 10, 3)])
    pair.step([(0, 2)], [], 5)
    torch.cuda.current_stream().synchronize()
    assert not pair.device.copies.streams.copies.query(), "the step is done, the load is not"
    pair.apply([MapChunk(0, 1, 0, 3)])
    pair.step([(0, 3)], [], 9)
    pair.check()


def test_bytes_arrive_when_their_copy_is_done_and_a_fault_waits_for_copies():
    pair = Pair("copies", 100 * CYCLES)
    pair.step([(0, 1)], [], 5)
    pair.apply([SaveBlock(0, 1, 10)])
    assert pair.device.take_arrived() == ()
    torch.cuda.synchronize()
    assert pair.device.take_arrived() == (10,)
    pair.apply([SaveBlock(0, 1, 11)])
    assert not pair.device.copies.streams.copies.query()
    pair.device.forget()
    assert pair.device.saved_rows == 0
    assert pair.device.copies.streams.copies.query()


@pytest.mark.parametrize("family", ["qwen35", "gemma4"])
def test_chats_with_places_for_two_go_on_as_with_places_for_all(cases, family):
    """Recorded steps run on the stream that waits for copies."""
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    settings = load_settings(
        device="cuda", context=512, slots=1, checkpoints=2, cache_memory=0.25, draft="off"
    )
    few = load_model(cases / f"{family}.gguf", settings, registry)
    text = np.load(cases / "qwen35.npz")["tokens"].tolist()
    found, expected = host_scenes.few_and_many(few, text)
    for (said, usage), (other, _) in zip(found[8:], expected[8:], strict=True):
        assert said == other
        assert usage.reused_from == "host"


def test_slabs_are_pinned_and_made_ahead():
    slabs = Slabs(1 << 20, torch.device("cuda", 0))
    slabs.make_ahead(3)
    taken = [slabs.take() for _ in range(4)]
    assert all(slab.is_pinned() for slab in taken)
    source = torch.arange(1 << 20, device="cuda").to(torch.uint8)
    for slab in taken:
        slab.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    assert all(torch.equal(slab, source.cpu()) for slab in taken)
    del slabs
    gc.collect()
    end = time.monotonic() + 10
    while any(slab.is_pinned() for slab in taken):
        assert time.monotonic() < end, "the memory is still pinned"
        time.sleep(0.01)
