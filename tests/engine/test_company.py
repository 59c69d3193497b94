"""--batch-invariant on a CPU: a sequence gets the same numbers in every slot and in every batch.

Bit for bit. Without it, the last numbers of a tensor are computed otherwise than those before them
(gates of delta nets and of attention), and a product may depend on how many rows it has.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kinfolk.engine.history import History
from kinfolk.engine.loading import load_model
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.sched.plan import Item, ItemKind, StepPlan
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings

CASES = ("qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna")
WARM = Sampling(temperature=0.8, seed=11, logprobs=4)
STEPS = 4


@pytest.fixture(scope="module")
def invariant(registry, cases):
    """``invariant(case, dtype, slots)``: a small model under --batch-invariant."""
    opened = {}

    def open_model(case, dtype="auto", slots=8):
        if (case, dtype, slots) not in opened:
            settings = load_settings(
                device="cpu", dtype=dtype, context=512, slots=slots, batch_invariant=True
            )
            opened[case, dtype, slots] = load_model(cases / f"{case}.gguf", settings, registry)
        return opened[case, dtype, slots]

    return open_model


@pytest.fixture
def threads():
    """``threads(count)``: torch uses so many threads for the rest of a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


class Together:
    """Sequences with prompts of their own that decode in the same steps."""

    def __init__(self, loaded, prompts):
        self.kv_cache, self.state = loaded.new_state()
        self.runner = ModelRunner(loaded, self.state)
        self.histories, self.steps = {}, 0
        self.leases = [self.kv_cache.open(300) for _ in prompts]
        for lease in self.leases:
            self.histories[str(lease)] = History(Request(str(lease), (1,), 500, WARM))
        first = self.step(ItemKind.PREFILL, prompts)
        self.results = [first]
        for _ in range(STEPS):
            tokens = [result.emitted for result in self.results[-1]]
            self.results.append(self.step(ItemKind.DECODE, tokens))

    def step(self, kind, rows):
        self.steps += 1
        items = []
        for lease, tokens in zip(self.leases, rows, strict=True):
            start = self.kv_cache.tables.length(lease)
            self.kv_cache.tables.extend(lease, start + len(tokens))
            items.append(Item(lease, str(lease), kind, tuple(tokens), start, budget=99))
        plan = StepPlan(self.steps, tuple(items), self.kv_cache.take_operations())
        results = self.runner.run(plan, self.histories).results
        for item, result in zip(items, results, strict=True):
            assert result.error is None
            self.kv_cache.tables.advance(item.lease, item.start + len(item.tokens))
            self.histories[item.request_id].extend(result.emitted)
        return results

    def of(self, place):
        """The emitted tokens and the stored state of the sequence at a place of the batch."""
        lease = self.leases[place]
        said = [(step[place].emitted, step[place].logprobs) for step in self.results]
        kept = [tensor[lease.slot] for tensor in self.state.recurrent_tensors()]
        length = self.kv_cache.tables.length(lease)
        for pool in self.state.pools:
            for chunk, block in sorted(pool.tables[lease.slot].items()):
                for section in pool.layout.sections.values():
                    rows = max(0, min(64, length - 64 * chunk))
                    kept.append(pool.view(pool.data, section)[block, :, :rows])
        return said, kept


def assert_equal(one, other, place):
    assert one[0] == other[0], f"place {place}"
    for mine, theirs in zip(one[1], other[1], strict=True):
        assert torch.equal(mine, theirs), f"place {place}"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("case", CASES)
def test_every_row_of_a_full_step_has_the_same_numbers(invariant, text, case, dtype):
    found = Together(invariant(case, dtype), [text[:50]] * 8)
    for place in range(1, 8):
        assert_equal(found.of(place), found.of(0), place)


@pytest.mark.parametrize("slots", [1, 3, 7, 11, 33])
def test_every_row_has_the_same_numbers_whatever_the_slots(invariant, text, slots):
    alone = Together(invariant("qwen35", slots=slots), [text[:50]]).of(0)
    found = Together(invariant("qwen35", slots=slots), [text[:50]] * slots)
    for place in range(slots):
        assert_equal(found.of(place), alone, place)


@pytest.mark.parametrize(("case", "cores"), [*((case, 1) for case in CASES), ("qwen35", 2)])
def test_strangers_change_nothing_at_any_place(invariant, text, threads, case, cores):
    threads(cores)
    loaded = invariant(case)
    alone = Together(loaded, [text[:50]]).of(0)
    strangers = [text[n : 10 + 9 * n] for n in range(1, 8)]
    for place in range(8):
        prompts = [*strangers[:place], text[:50], *strangers[place:]]
        assert_equal(Together(loaded, prompts).of(place), alone, place)


def test_no_step_has_rows_of_two_sequences(invariant, text, altered):
    """The guarantee then holds for the ops and models of any plugin too."""
    loaded, seen = invariant("qwen35"), []

    def forward(batch, state):
        seen.append({segment.slot for segment in batch.layout.segments})
        return loaded.model.forward(batch, state)

    Together(altered(loaded, forward=forward), [text[:50], text[:9], text[:20]])
    assert len(seen) == 3 * (1 + STEPS)
    assert all(len(slots) == 1 for slots in seen)


# -- through the engine ---------------------------------------------------------------------------


def told(outcome):
    assert outcome.end.error is None
    return outcome.tokens, outcome.logprobs


@pytest.mark.parametrize(("case", "cores"), [*((case, 1) for case in CASES), ("qwen35", 2)])
def test_equal_requests_get_equal_answers_in_any_company(
    invariant, engine, collect, text, threads, case, cores
):
    """More equal requests than slots, among other requests: every slot serves one at some time."""
    threads(cores)
    with_company = engine(model=invariant(case), slots=8)
    mine = Request("mine", tuple(text[:40]), 12, WARM, checkpoints=(30,), keep=True)
    asked = []
    for number in range(12):
        asked.append(replace(mine, id=f"mine {number}"))
        stranger = Sampling(temperature=1.1, seed=number)
        asked.append(
            Request(f"other {number}", tuple(text[number : 9 + 4 * number]), 1 + number, stranger)
        )
    tickets = [with_company.submit(request) for request in asked]
    answers = [told(collect(ticket)) for ticket in tickets][::2]
    alone = told(collect(engine(model=invariant(case)).submit(mine)))
    assert answers == [alone] * 12


def test_nothing_is_taken_over_from_the_requests_before(invariant, engine, collect, text):
    """A prompt that continued another's checkpoint would be prefilled in other slices."""
    running = engine(model=invariant("qwen35"))
    first = Request("first", tuple(text[:60]), 5, WARM, checkpoints=(37, 50), keep=True)
    again = Request("again", tuple(text[:90]), 9, WARM)
    whole = collect(running.submit(again))
    collect(running.submit(first))
    after = collect(running.submit(replace(again, id="later")))
    assert after.end.usage.reused == 0
    assert told(after) == told(whole)
