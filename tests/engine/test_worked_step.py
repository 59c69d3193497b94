"""The step that docs/architecture.md works through: planned, filled in, sampled and committed."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from kinfolk.engine.commit_batch import sample_and_commit
from kinfolk.engine.history import History
from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.logprobs import NO_LOGPROBS
from kinfolk.engine.outputs import LogitsOutputs, StepOutputs, item_results
from kinfolk.engine.scheduled_batch import ScheduledBatch
from kinfolk.model_api import Forward
from kinfolk.plans import Codec, Paged, Section, StateLimits, StatePlan
from kinfolk.sched.events import Emitted
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import ItemResult, StepResult
from kinfolk.sched.request import Request
from kinfolk.sched.scheduler import Scheduler
from kinfolk.spec.sampling import REFERENCE_DRAW, uploaded_sampling
from kinfolk.spec.verify import REFERENCE_ACCEPT_DRAFTS, DefaultVerify
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.prefix import PrefixCache
from kinfolk.state.state import State
from kinfolk_kernels.pack_outputs.op import PACK_OUTPUTS, PackOutputsArguments

PLAN = StatePlan((Paged((Section("k", 2, 4, Codec("f32")), Section("v", 2, 4, Codec("f32")))),))
CPU = torch.device("cpu")
VOCABULARY = 50


class OneDraft:
    """Always expects token 9."""

    def propose(self, known, limit):
        return [9]

    def release(self, known):
        """Nothing is kept."""


class WorkedStep:
    """Requests A, B and C, brought to the step of the page by the scheduler itself."""

    def __init__(self, page):
        self.page = page
        limits = StateLimits(slots=4, checkpoints=0, blocks=(20,), context=300, step_rows=256)
        self.kv_cache = KVCacheManager(PLAN.windows, limits, recurrent=False)
        self.state = State(PLAN, limits, CPU)
        self.scheduler = Scheduler(
            SchedulerLimits(slots=4, context=300, slice=256),
            self.kv_cache,
            PrefixCache(self.kv_cache.checkpoints, 0),
            OneDraft(),
        )
        self.requests = {
            "A": Request("A", tuple(range(1, 41)) + tuple(range(1, 31)), 20, draft=False),
            "B": Request("B", tuple(range(1, 41)) + tuple(range(1, 24)), 20),
            "C": Request("C", (5, 6, 7), 20),
        }
        for name in "AB":
            self.scheduler.submit(self.requests[name])
        plan = self.scheduler.plan()
        self.state.apply(plan.operations)
        first = {"A": 17, "B": 8}
        results = [
            ItemResult(i.lease, i.request_id, len(i.tokens), (first[i.request_id],))
            for i in plan.items
        ]
        self.scheduler.commit(StepResult(plan.step_id, tuple(results)))
        self.scheduler.submit(self.requests["C"])
        self.plan = self.scheduler.plan()
        self.state.apply(self.plan.operations)
        self.inputs = build_input_batch(self.plan.items, self.state)

    def outputs(self, chosen):
        """The outputs that the host reads if logit row i prefers the token ``chosen[i]``."""
        batch, rows = self.inputs.batch, len(chosen)
        logits = torch.zeros(rows, VOCABULARY)
        logits[torch.arange(rows), torch.tensor(chosen)] = 1
        arguments = PackOutputsArguments(CPU)
        pack = partial(PACK_OUTPUTS.reference, arguments)
        loaded = SimpleNamespace(
            hooks=DefaultVerify(),
            model=SimpleNamespace(commit=lambda trace, kept, state: None),
            step_ops=SimpleNamespace(accept_drafts=REFERENCE_ACCEPT_DRAFTS, pack_outputs=pack),
        )
        histories = {name: History(request) for name, request in self.requests.items()}
        scheduled = ScheduledBatch(self.plan.items, None, histories)
        sampling = uploaded_sampling(
            scheduled.parameters,
            scheduled.sampling_kind,
            None,
            CPU,
            REFERENCE_DRAW,
        )
        forward = Forward(torch.zeros(batch.rows, 4), (None,))
        packed = sample_and_commit(
            loaded,
            self.state,
            LogitsOutputs(batch, forward, logits),
            self.inputs.sampled,
            sampling,
            drafts=True,
        )
        outputs = StepOutputs.read(packed.numpy(), len(self.plan.items), 3)
        return outputs, item_results(scheduled, outputs, NO_LOGPROBS)

    def block(self, title):
        """The lines of a block of the page."""
        (block,) = re.findall(rf"^```{title}\n(.*?)^```", self.page, re.MULTILINE | re.DOTALL)
        return block.splitlines()

    def lines(self, title):
        """The words after the name in each line of a block; "|" only separates sequences."""
        split = [line.replace("|", " ").split() for line in self.block(title)]
        return {name: words for name, *words in split}


@pytest.fixture(scope="module")
def worked(repo):
    return WorkedStep((repo / "docs/architecture.md").read_text())


def shown(numbers):
    """A list of integers as the page shows it, one word."""
    return f"[{','.join(map(str, numbers))}]"


def test_the_plan_is_that_of_the_page(worked):
    head, *lines = worked.block("plan")
    assert head.split() == ["item", "kind", "start", "slot", "tokens"]
    items, operations = lines[: len(worked.plan.items)], lines[len(worked.plan.items) :]
    assert [line.split() for line in items] == [
        [i.request_id, i.kind.name, str(i.start), str(i.lease.slot), shown(i.tokens)]
        for i in worked.plan.items
    ]
    assert operations == [str(operation) for operation in worked.plan.operations]


def test_the_rows_are_those_of_the_page(worked):
    batch, lines = worked.inputs.batch, worked.lines("rows-of-the-step")
    assert [int(word) for word in lines.pop("row")] == list(range(batch.rows))
    for name, words in lines.items():
        assert getattr(batch, name).flatten().tolist() == [int(word) for word in words], name
    assert set(lines) == {
        "tokens",
        "positions",
        "sequence_of_row",
        "parent_row",
        "limit",
        "write_row",
        "logit_rows",
    }


def test_the_sequences_are_those_of_the_page(worked):
    batch, lines = worked.inputs.batch, worked.lines("sequences-of-the-step")
    (table,) = batch.tables
    arrays = {
        "slot_of_sequence": batch.slot_of_sequence,
        "context_len": batch.context_len,
        "spans": batch.layout.spans,
        "tables[0].length": table.length,
        "tables[0].blocks": table.blocks,
    }
    assert set(lines) == set(arrays)
    for name, words in lines.items():
        assert arrays[name].flatten().tolist() == [int(word) for word in words], name


def test_a_row_is_written_to_the_block_of_its_chunk(worked):
    batch = worked.inputs.batch
    (table,) = batch.tables
    for row in range(batch.rows):
        sequence, position = batch.sequence_of_row[row], batch.positions[row]
        block = table.blocks[sequence, position // 64]
        assert batch.write_row[0, row] == block * 64 + position % 64


def test_what_is_chosen_and_committed_is_that_of_the_page(worked):
    lines = worked.lines("outputs-of-the-step")
    outputs, results = worked.outputs([int(word) for word in lines.pop("chosen")])
    path = [row for rows in outputs.path for row in rows]
    found = {"path": path, "n_keep": outputs.n_keep, "next": outputs.next}
    events = worked.scheduler.commit(StepResult(worked.plan.step_id, tuple(results)))
    emitted = {event.request_id: event.tokens for event in events if isinstance(event, Emitted)}
    ids = [item.request_id for item in worked.plan.items]
    assert lines.pop("emitted") == [shown(emitted[request_id]) for request_id in ids]
    found["length"] = [worked.kv_cache.tables.length(item.lease) for item in worked.plan.items]
    assert {name: [int(word) for word in words] for name, words in lines.items()} == found
