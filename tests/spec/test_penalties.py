"""Penalties and bias from counts on the device, against those that the host counts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from kinfolk.sched.request import Sampling
from kinfolk.spec.penalties import PenaltyState
from kinfolk.spec.sampling import RowContext, row_sampling

CPU = torch.device("cpu")
VOCABULARY = 40
SAMPLINGS = [
    Sampling(presence_penalty=0.7, frequency_penalty=-0.2),
    Sampling(repetition_penalty=1.3, logit_bias=((3, 2.5), (9, float("-inf")))),
    Sampling(),
    Sampling(repetition_penalty=0.8, frequency_penalty=0.35, temperature=1),
]
SLOTS = torch.tensor([2, 4, 1, 3])


@pytest.fixture
def rows():
    """One row for each of the samplings, with its own counts."""
    made = []
    for number, sampling in enumerate(SAMPLINGS):
        output = Counter({number: 2, 7: 1} if sampling.has_penalties else {})
        prompt = frozenset({number, 5, 6} if sampling.has_penalties else ())
        made.append(RowContext(sampling, 9, prompt, output))
    return made


def entered(rows):
    penalties = PenaltyState(6, VOCABULARY, CPU)
    for slot, row in zip(SLOTS.tolist(), rows, strict=True):
        penalties.enter(slot, row)
    return penalties


def assert_as_the_host_counts(penalties, rows, numbers):
    logits = numbers(len(rows), VOCABULARY)
    sampling = row_sampling(rows, CPU)
    found = penalties.of(SLOTS).apply(logits, sampling)
    assert torch.equal(found, sampling.edits.apply(logits, sampling))


@pytest.fixture
def numbers():
    generator = torch.Generator().manual_seed(1)
    return lambda *shape: torch.randn(*shape, generator=generator) * 3


def test_logits_are_changed_to_the_same_bits(rows, numbers):
    assert_as_the_host_counts(entered(rows), rows, numbers)


def test_tokens_that_are_chosen_count_at_once(rows, numbers):
    penalties = entered(rows)
    for chosen in ([1, 5, 8, 3], [1, 30, 0, 39]):
        penalties.of(SLOTS).note(torch.tensor(chosen))
        for row, token in zip(rows, chosen, strict=True):
            row.output.update([token])
        for slot, row in zip(SLOTS.tolist(), rows, strict=True):
            penalties.enter(slot, row)
        assert_as_the_host_counts(penalties, rows, numbers)


def test_a_slot_that_changes_hands_or_was_forgotten_is_filled_anew(rows, numbers):
    penalties = entered(rows)
    penalties.of(SLOTS).note(torch.tensor([1, 2, 3, 4]))
    penalties.forget([2])
    rows[1] = RowContext(SAMPLINGS[0], 3, frozenset({1}), Counter({2: 1}))
    rows[3] = RowContext(SAMPLINGS[3], 3, frozenset({1}), rows[3].output + Counter({4: 1}))
    for slot, row in zip(SLOTS.tolist(), rows, strict=True):
        penalties.enter(slot, row)
    assert_as_the_host_counts(penalties, rows, numbers)
