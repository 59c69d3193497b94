"""Widths by cost: as many drafted rows as pay, for what steps take and what is kept."""

from __future__ import annotations

import random

import pytest

from kinfolk.sched.request import Request, Sequence
from kinfolk.sched.widths import LEAST_PROBE, PROBE, SIZES, CostWidths, FixedWidths

PROPOSED = 15


def sequences(count):
    return [Sequence(Request(str(i), (1,), 1000), i) for i in range(count)]


def rounded(count):
    return next(size for size in SIZES if size >= count)


class World:
    """Steps that take ``base + row * rows`` seconds, ``draft`` more behind a draft, and rows of
    sequence i that are kept with chance ``chances[i]`` if their predecessor is."""

    def __init__(self, chances, *, base, row, draft=0.0, proposed=PROPOSED):
        self.chances, self.proposed = chances, proposed
        self.base, self.row, self.draft = base, row, draft
        self.policy = CostWidths(proposed)
        self.lanes = sequences(len(chances))
        self.pending = [proposed] * len(chances)
        self.drafted, self.source = True, random.Random(0)
        self.widths, self.tokens, self.seconds = [], 0, 0.0

    def time(self, rows, drafted):
        return self.base + self.row * rounded(rows) + self.draft * drafted

    def step(self):
        policy, lanes = self.policy, self.lanes
        widths = policy.choose(lanes, self.pending, 1000)
        proposes = policy.propose(lanes, [self.proposed] * len(lanes))
        rows = len(lanes) + sum(widths)
        self.tokens += len(lanes)
        for lane, width, chance in zip(lanes, widths, self.chances, strict=True):
            kept = 0
            while kept < width and self.source.random() < chance:
                kept += 1
            policy.verified(lane, width, range(1, kept + 1))
            self.tokens += kept
        seconds = self.time(rows, self.drafted)
        policy.timed(rows, len(lanes), seconds, drafted=self.drafted)
        self.seconds += seconds
        self.pending = [self.proposed * each for each in proposes]
        self.drafted = any(proposes)
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
@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize(("row", "draft"), [(0.01, 0.1), (0.1, 0.3), (1.0, 0.5)])
def test_it_is_as_fast_as_the_best_fixed_width(chance, count, row, draft):
    """But for probes and noise."""
    world = World([chance] * count, base=1.0, row=row, draft=draft)
    world.run(400)
    found = world.run(1500)
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


def test_every_row_is_used_that_costs_nothing():
    """A padded step has 24 rows whether 17 or 24 are wanted."""
    world = World([0.6], base=1.0, row=0.0, draft=0.0)
    world.run(200)
    assert world.widths[-1] == [PROPOSED]


def test_no_more_rows_than_there_are():
    policy, lanes = CostWidths(PROPOSED), sequences(3)
    for rows in (0, 1, 5, 100):
        for _ in range(PROBE + 3):
            widths = policy.choose(lanes, [4, 0, 15], rows)
            assert sum(widths) <= max(0, rows)
            assert all(width <= most for width, most in zip(widths, [4, 0, 15], strict=True))
            policy.timed(3 + sum(widths), 3, 1.0, drafted=True)


def test_what_was_known_of_a_sequence_is_forgotten_with_it():
    policy, (lane,) = CostWidths(4), sequences(1)
    for _ in range(50):
        policy.verified(lane, 4, ())
    assert policy._chances
    policy.release(lane)
    assert not policy._chances


def test_fixed_widths_are_all_that_is_proposed():
    policy, lanes = FixedWidths(), sequences(3)
    assert policy.choose(lanes, [7, 0, 3], 10) == [7, 0, 3]
    assert policy.choose(lanes, [7, 0, 3], 6) == [3, 0, 3]
    assert policy.propose(lanes, [7, 0, 3]) == [True, False, True]
