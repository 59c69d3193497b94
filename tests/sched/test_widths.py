"""Widths by cost: as many drafted rows as pay, for what steps take and what is kept."""

from __future__ import annotations

import random

import pytest

from kinfolk.sched.cost_widths import ASKED_AGAIN, LEAST_PROBE, PROBE, SIZES, CostWidths
from kinfolk.sched.request import Request, Sequence
from kinfolk.sched.widths import (
    CHAIN_SOURCE,
    TREE_SOURCE,
    Candidate,
    ConfidenceWidths,
    FixedWidths,
    Proposable,
    host_source,
)

PROPOSED = 15


def sequences(count):
    return [Sequence(Request(str(i), (1,), 1000), i) for i in range(count)]


def chains(lanes, most):
    return [Candidate(lane, rows) for lane, rows in zip(lanes, most, strict=True)]


def rounded(count):
    return next(size for size in SIZES if size >= count)


class World:
    """Steps that take ``base + row * rows`` seconds, ``draft`` more behind a draft, and rows of
    sequence i that are kept with chance ``chances[i]`` if their predecessor is. A step has at most
    ``most`` drafted rows."""

    def __init__(self, chances, *, base, row, draft=0.0, proposed=PROPOSED, most=1000):
        self.chances, self.proposed, self.most = chances, proposed, most
        self.base, self.row, self.draft = base, row, draft
        self.policy = CostWidths()
        self.lanes = sequences(len(chances))
        self.pending = [proposed] * len(chances)
        self.drafted, self.source = True, random.Random(0)
        self.widths, self.tokens, self.seconds = [], 0, 0.0

    def time(self, rows, drafted):
        return self.base + self.row * rounded(rows) + self.draft * drafted

    def step(self):
        policy, lanes = self.policy, self.lanes
        drafts = chains(lanes, self.pending)
        widths = policy.choose(drafts, self.most, drafted=self.drafted)
        proposes = policy.propose([Proposable(lane, self.proposed) for lane in lanes], self.most)
        rows = len(lanes) + sum(widths)
        self.tokens += len(lanes)
        for lane, width, chance in zip(lanes, widths, self.chances, strict=True):
            kept = 0
            while kept < width and self.source.random() < chance:
                kept += 1
            if width:
                policy.verified(Candidate(lane, width), range(1, kept + 1))
            self.tokens += kept
        seconds = self.time(rows, self.drafted)
        policy.timed(rows, len(lanes), seconds, drafted=self.drafted, tree=False)
        self.seconds += seconds
        self.pending = [self.proposed * (mode == "chain") for mode in proposes]
        self.drafted = any(self.pending)
        self.widths.append(widths)

    def run(self, steps):
        self.tokens, self.seconds = 0, 0.0
        for _ in range(steps):
            self.step()
        return self.tokens / self.seconds

    def fixed(self, width):
        """Tokens a second with one width for all, drafted for unless it is 0."""
        expected = sum(sum(c**j for j in range(width + 1)) for c in self.chances)
        return expected / self.time(len(self.chances) * (1 + width), width > 0)


@pytest.mark.parametrize("chance", [0.95, 0.8, 0.5, 0.1, 0.0])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(("row", "draft"), [(0.01, 0.1), (0.1, 0.3), (1.0, 0.5)])
def test_it_is_as_fast_as_the_best_fixed_width(chance, count, row, draft):
    """But for probes and noise."""
    world = World([chance] * count, base=1.0, row=row, draft=draft)
    world.run(300)
    found = world.run(900)
    assert found >= 0.9 * max(world.fixed(width) for width in range(PROPOSED + 1))


def test_a_sequence_that_is_easy_to_guess_gets_more_rows():
    world = World([0.95, 0.3, 0.0], base=1.0, row=0.05, draft=0.1)
    world.run(600)
    easy, hard, never = (sum(widths[lane] for widths in world.widths[-256:]) for lane in range(3))
    assert easy > 2 * hard
    assert hard >= never


def test_drafts_that_do_not_pay_stop_and_are_probed_again():
    world = World([0.0], base=1.0, row=0.5, draft=1.0)
    world.run(300)
    widths = [widths[0] for widths in world.widths[-2 * PROBE :]]
    assert widths.count(0) >= 2 * PROBE - 4
    assert LEAST_PROBE <= max(widths) <= PROPOSED
    # The text becomes easy: some probes later, drafts pay.
    world.chances, world.row, world.draft = [0.97], 0.01, 0.1
    world.run(4000)
    assert sum(widths[0] for widths in world.widths[-PROBE:]) > 8 * PROBE


def test_more_rows_than_a_step_may_have_are_no_hope():
    """With 32 sequences, 96 drafted rows do not pay. More would, but no step has more."""
    world = World([0.8] * 32, base=1.0, row=0.05, draft=3.0, most=96)
    plain = 32 / world.time(32, False)
    assert world.fixed(3) < 0.95 * plain
    world.run(64)
    assert world.run(400) > 0.95 * plain


def test_every_row_is_used_that_costs_nothing():
    """A padded step has 24 rows whether 17 or 24 are wanted."""
    world = World([0.6], base=1.0, row=0.0, draft=0.0)
    world.run(200)
    assert world.widths[-1] == [PROPOSED]


def test_a_size_that_cannot_be_the_best_is_not_tried():
    """One drafted row gives two tokens at most; fifteen give ten in less than five times a step
    without drafts, which is the least that any step takes."""
    world = World([0.95], base=1.0, row=0.01, draft=0.5)
    world.run(PROBE - 1)
    tried = {widths[0] for widths in world.widths[4:]}
    assert PROPOSED in tried
    assert 1 not in tried


def test_few_sizes_are_tried_where_drafts_of_many_sequences_do_not_pay():
    """Sizes between a step without drafts and one of all rows, both timed, cost about as much more
    as they have rows."""
    world = World([0.2] * 32, base=10.0, row=0.2, draft=2.0)
    world.run(PROBE - 4)
    assert sum(any(widths) for widths in world.widths) <= 12


def test_no_more_rows_than_there_are():
    policy, lanes = CostWidths(), sequences(3)
    for rows in (0, 1, 5, 100):
        for _ in range(PROBE + 3):
            widths = policy.choose(chains(lanes, [4, 0, 15]), rows, drafted=True)
            assert sum(widths) <= max(0, rows)
            assert all(width <= most for width, most in zip(widths, [4, 0, 15], strict=True))
            policy.timed(3 + sum(widths), 3, 1.0, drafted=True, tree=False)


def test_what_was_known_of_a_sequence_is_forgotten_with_it():
    policy, (lane,) = CostWidths(), sequences(1)
    for _ in range(50):
        policy.verified(Candidate(lane, 4), ())
    assert policy._of_sequence
    policy.release(lane)
    assert not policy._of_sequence


def test_fixed_widths_are_all_that_is_proposed():
    policy, lanes = FixedWidths(), sequences(3)
    drafts = chains(lanes, [7, 0, 3])
    assert policy.choose(drafts, 10, drafted=True) == [7, 0, 3]
    assert policy.choose(drafts, 6, drafted=True) == [3, 0, 3]
    wishes = [Proposable(*each) for each in zip(lanes, (7, 0, 3), (9, 9, 0), strict=True)]
    assert policy.propose(wishes, 10) == ["chain", "tree", "chain"]


def test_by_confidence_a_chain_ends_where_its_drafter_doubts():
    policy, (lane, other) = ConfidenceWidths(), sequences(2)
    lane.confidence = (0.9, 0.5, 0.19, 0.1)
    drafts = [Candidate(lane, 4), Candidate(other, 6, host_source(6))]
    assert policy.choose(drafts, 20, drafted=True) == [2, 6]
    lane.confidence = (0.9, 0.5, 0.3, 0.2)
    assert policy.choose(drafts[:1], 20, drafted=True) == [4]


def time_steps(policy, lanes, plain, drafted, tree=None, sizes=SIZES[:6]):
    """Have steps of all sizes take so long: without a draft, behind one, and with a tree."""
    for rows in sizes:
        for _ in range(3):
            policy.timed(rows, lanes, plain, drafted=False, tree=False)
            policy.timed(rows, lanes, drafted, drafted=True, tree=False)
            if tree is not None:
                policy.timed(rows, lanes, tree, drafted=True, tree=True)
    policy.choose([], 0, drafted=False)


def learned(policy, lane, source, rows, kept, times=200):
    for _ in range(times):
        policy.verified(Candidate(lane, rows, source), range(1, kept + 1))


def test_short_drafts_of_the_host_say_nothing_of_long_ones():
    """A drafter of the host drafts more where it is surer."""
    policy, (lane,) = CostWidths(), sequences(1)
    learned(policy, lane, host_source(2), 2, 0)
    learned(policy, lane, host_source(12), 12, 12)
    for rows in SIZES[:6]:
        for _ in range(3):
            policy.timed(rows, 1, 1.0 + 0.05 * rows, drafted=False, tree=False)
    assert not policy.pays([Candidate(lane, 2, host_source(2))])
    long = Candidate(lane, 12, host_source(12))
    assert policy.pays([long])
    assert policy.choose([long], 64, drafted=False) == [12]
    assert policy.expected(long) == pytest.approx(12, abs=0.1)


@pytest.mark.parametrize("gain", [0, 3])
def test_a_tree_is_proposed_where_it_pays(gain):
    """A tree of 15 rows keeps ``gain`` tokens more than a chain, and takes longer."""
    policy, (lane,) = CostWidths(), sequences(1)
    learned(policy, lane, CHAIN_SOURCE, 7, 3)
    for _ in range(200):
        policy.verified(Candidate(lane, 15, TREE_SOURCE), range(1, 4 + gain))
    time_steps(policy, 1, 1.0, 1.1, 1.3)
    assert policy.propose([Proposable(lane, 7, 15)], 1000) == ["tree" if gain else "chain"]


def test_a_step_that_nobody_asks_about_brings_the_next_probe_nearer():
    policy, (lane,) = CostWidths(), sequences(1)
    steps = 0
    while policy.passed():
        steps += 1
    assert steps == PROBE - 2
    policy.choose(chains([lane], [0]), 64, drafted=False)
    assert policy.propose([Proposable(lane, 4)], 1000) == ["chain"]


def test_a_step_without_drafts_whose_time_is_unknown_is_soon_asked_about_again():
    """Its steps overlap meanwhile, for as long as it takes to time a few."""
    policy, (lane,) = CostWidths(), sequences(1)
    policy.choose(chains([lane], [0]), 64, drafted=False)
    assert policy.propose([Proposable(lane, 4)], 1000) == ["off"]
    steps = 0
    while policy.passed():
        steps += 1
        policy.timed(1, 1, 1.0, drafted=False, tree=False)
    assert steps == ASKED_AGAIN
    policy.choose(chains([lane], [0]), 64, drafted=False)
    assert policy.propose([Proposable(lane, 4)], 1000) == ["chain"]
    # Nothing is unknown now.
    assert all(policy.passed() for _ in range(ASKED_AGAIN + 2))


@pytest.mark.parametrize("slow", [1, 2, 3, 40])
def test_a_step_that_was_held_up_does_not_hide_its_size(slow):
    """Step number ``slow`` without drafts takes a thousand times as long; drafts do not pay."""
    world = World([0.1] * 8, base=1.0, row=0.1, draft=0.5)
    plain = world.time(8, False)
    steps = 0

    def time(rows, drafted):
        nonlocal steps
        steps += rows == 8 and not drafted
        held_up = rows == 8 and not drafted and steps == slow
        return World.time(world, rows, drafted) + 1000 * plain * held_up

    world.time = time
    world.run(60)
    assert world.run(200) >= 0.85 * 8 / plain


def test_a_tree_is_not_tried_where_it_is_expected_to_keep_what_a_chain_does():
    """Its steps would have to be captured first. Probes tell what it keeps."""
    policy, (lane,) = CostWidths(), sequences(1)
    learned(policy, lane, CHAIN_SOURCE, 7, 3)
    time_steps(policy, 1, 1.0, 1.1)
    assert policy.propose([Proposable(lane, 7, 7)], 1000) == ["chain"]
    learned(policy, lane, TREE_SOURCE, 7, 5)
    assert policy.propose([Proposable(lane, 7, 7)], 1000) == ["tree"]


def test_several_sequences_have_chains():
    """But for requests that ask for trees, which have no chain to propose."""
    policy, lanes = CostWidths(), sequences(2)
    for lane in lanes:
        learned(policy, lane, CHAIN_SOURCE, 7, 3)
        learned(policy, lane, TREE_SOURCE, 7, 6)
    time_steps(policy, 2, 1.0, 1.1, 1.1)
    first, second = lanes
    assert policy.propose([Proposable(lane, 7, 7) for lane in lanes], 1000) == ["chain", "chain"]
    wishes = [Proposable(first, 7), Proposable(second, 0, 7)]
    assert policy.propose(wishes, 1000) == ["chain", "tree"]


def test_drafts_of_several_sequences_must_give_some_more_than_steps_without():
    for count, mode in ((1, "chain"), (4, "off")):
        policy, lanes = CostWidths(), sequences(count)
        for lane in lanes:
            learned(policy, lane, CHAIN_SOURCE, 1, 1)
        time_steps(policy, count, 1.0, 1.95, sizes=SIZES)
        assert policy.propose([Proposable(lane, 1) for lane in lanes], 1000) == [mode] * count
