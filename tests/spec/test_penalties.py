"""Penalties and bias from counts on the device, against those that the host counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from kinfolk.sched.request import Sampling
from kinfolk.spec.penalties import PenaltyState
from kinfolk.testing.row_sampling import RowContext, row_sampling
from kinfolk_kernels.row_layout import RowLayout, Segment

CPU = torch.device("cpu")
VOCABULARY = 40
SAMPLINGS = [
    Sampling(presence_penalty=0.7, frequency_penalty=-0.2),
    Sampling(repetition_penalty=1.3, logit_bias=((3, 2.5), (9, float("-inf")))),
    Sampling(),
    Sampling(repetition_penalty=0.8, frequency_penalty=0.35, temperature=1),
]
SLOTS = [2, 4, 1, 3]


@dataclass
class Sequence:
    """A request in a slot, and the rows of its next step: the pending token, then drafts."""

    slot: int
    sampling: Sampling
    prompt: frozenset
    output: Counter
    tokens: tuple = (7,)
    parents: tuple = (-1,)

    def contexts(self):
        """The context of each row, from the tokens before it."""
        made = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            before = self.output if parent < 0 else made[parent].output + Counter([token])
            made.append(RowContext(self.sampling, 9, self.prompt, before))
        return made


@pytest.fixture
def sequences():
    """One sequence for each of the samplings, with its own counts."""
    made = []
    for number, (slot, sampling) in enumerate(zip(SLOTS, SAMPLINGS, strict=True)):
        counted = sampling.has_penalties
        output = Counter({number: 2, 7: 1} if counted else {})
        made.append(Sequence(slot, sampling, frozenset({number, 5, 6} if counted else ()), output))
    return made


@pytest.fixture
def numbers():
    generator = torch.Generator().manual_seed(1)
    return lambda *shape: torch.randn(*shape, generator=generator) * 3


def enter(penalties, sequences):
    for each in sequences:
        penalties.enter(each.slot, each.sampling, each.prompt, each.output)


def entered(sequences):
    penalties = PenaltyState(6, VOCABULARY, CPU)
    enter(penalties, sequences)
    return penalties


def edits(penalties, sequences):
    """The edits of a step that samples all rows of all sequences."""
    segments, first = [], 0
    for number, each in enumerate(sequences):
        stop = first + len(each.tokens)
        segments.append(Segment(number, each.slot, first, stop, 9, stop - first > 1))
        first = stop
    parents = [
        p if p < 0 else s.start + p
        for s, e in zip(segments, sequences, strict=True)
        for p in e.parents
    ]
    counts = torch.tensor([len(each.tokens) for each in sequences])
    slots = torch.tensor([each.slot for each in sequences])
    batch = SimpleNamespace(
        tokens=torch.tensor([token for each in sequences for token in each.tokens]),
        logit_rows=torch.arange(first),
        sequence_of_row=torch.arange(len(sequences)).repeat_interleave(counts),
        slot_of_sequence=slots,
        layout=RowLayout.of(segments, torch.tensor(parents)),
    )
    return penalties.edits(batch, slots)


def assert_as_the_host_counts(penalties, sequences, numbers):
    contexts = [context for each in sequences for context in each.contexts()]
    logits = numbers(len(contexts), VOCABULARY)
    sampling = row_sampling(contexts, CPU)
    found = edits(penalties, sequences).apply(logits, sampling)
    assert torch.equal(found, sampling.edits.apply(logits, sampling))


def drafted(sequences):
    """The same sequences with drafts: a chain, a tree, a repeated token, none."""
    chain = (-1, 0, 1, 2)
    rows = [
        ((7, 8, 8, 0), chain),
        ((7, 8, 9, 8, 7), (-1, 0, 0, 2, 1)),
        ((7, 7), chain[:2]),
        ((7,), (-1,)),
    ]
    return [
        replace(each, tokens=tokens, parents=parents)
        for each, (tokens, parents) in zip(sequences, rows, strict=True)
    ]


def test_logits_are_changed_to_the_same_bits(sequences, numbers):
    assert_as_the_host_counts(entered(sequences), sequences, numbers)


@pytest.mark.parametrize("turn", range(4))
def test_a_drafted_row_counts_the_drafts_of_its_own_path(sequences, numbers, turn):
    turned = drafted(sequences[turn:] + sequences[:turn])
    assert_as_the_host_counts(entered(turned), turned, numbers)


def test_drafts_leave_no_count_behind(sequences, numbers):
    penalties, turned = entered(sequences), drafted(sequences)
    assert_as_the_host_counts(penalties, turned, numbers)
    assert_as_the_host_counts(penalties, sequences, numbers)


def test_tokens_that_are_emitted_count_at_once(sequences, numbers):
    penalties = entered(sequences)
    for emitted in (
        [[1, -1, -1], [5, 5, 8], [8, -1, -1], [3, 3, -1]],
        [[-1, -1, 1], [-1, -1, 30], [-1, -1, 0], [-1, -1, 39]],
    ):
        edits(penalties, sequences).note(torch.tensor(emitted))
        for each, tokens in zip(sequences, emitted, strict=True):
            each.output.update(token for token in tokens if token >= 0)
        enter(penalties, sequences)
        assert_as_the_host_counts(penalties, sequences, numbers)


def test_a_slot_that_changes_hands_is_filled_anew(sequences, numbers):
    penalties = entered(sequences)
    edits(penalties, sequences).note(torch.tensor([[1], [2], [3], [4]]))
    sequences[1] = Sequence(SLOTS[1], SAMPLINGS[0], frozenset({1}), Counter({2: 1}))
    sequences[0].output.update([1])
    sequences[3].output.update([4])
    enter(penalties, sequences)
    assert_as_the_host_counts(penalties, sequences, numbers)


def test_after_a_failed_step_the_counts_are_those_of_the_host(sequences, numbers):
    penalties = entered(sequences)
    edits(penalties, sequences).note(torch.tensor([[1], [2], [3], [4]]))
    penalties.forget()
    enter(penalties, sequences)
    assert_as_the_host_counts(penalties, sequences, numbers)
