"""Checks of what a drafter proposes, and of all that it must leave alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from typing import Any, Final

import torch

from kinfolk.draft_api import Proposals
from kinfolk.plans import Recurrent
from kinfolk.state.chunks import SlotLease
from kinfolk.testing.checks.drafter_state import ANCHOR
from kinfolk.testing.draft_driver import DraftDriver
from kinfolk.testing.drafter_kit import ROWS_TREE, DrafterKit, assert_same_proposals
from kinfolk.testing.host_reads import OnDevice
from kinfolk.testing.marks import needs

SEQUENCE_LENGTHS: Final = (1, 9, 64, 77)
"""Committed tokens of the sequences that are drafted for: in one chunk, a whole one, and two."""

SCORE_ROUNDING: Final = 1e-4


class DrafterProposalChecks:
    """``draft`` proposes candidates of the target's vocabulary and changes nothing."""

    @needs("tiny drafter")
    def test_proposals_are_candidates(self, kinfolk_drafter: DrafterKit) -> None:
        """Proposals have the shape that the plan promises, ids of the vocabulary, the best first,
        and scores that are log-probabilities."""
        drive, leases = started(kinfolk_drafter)
        found = drive.propose(dict.fromkeys(leases, ANCHOR))
        plan, lanes = drive.plan, len(leases)
        shape = (lanes, plan.depth, plan.columns)
        assert tuple(found.tokens.shape) == shape, (
            f"tokens have shape {tuple(found.tokens.shape)}, the plan promises {shape}"
        )
        assert tuple(found.scores.shape) == shape, (
            f"scores have shape {tuple(found.scores.shape)}, tokens have {shape}"
        )
        assert found.tokens.dtype == torch.int64, f"tokens are {found.tokens.dtype}"
        assert found.scores.dtype == torch.float32, f"scores are {found.scores.dtype}"
        vocabulary = drive.loaded.info.vocabulary
        low, high = int(found.tokens.min()), int(found.tokens.max())
        assert low >= 0, f"token {low} is below 0"
        assert high < vocabulary, f"token {high} is not below {vocabulary}"
        assert bool(found.scores.isfinite().all()), "a score is not finite"
        assert float(found.scores.max()) <= SCORE_ROUNDING, "a score is above 0: no log-probability"
        rising = found.scores.diff(dim=2) > SCORE_ROUNDING
        assert not bool(rising.any()), "scores rise from one column to the next: not the best first"
        for siblings in siblings_of(found):
            tokens, scores = zip(*siblings, strict=True)
            total = float(torch.tensor(scores).exp().sum())
            assert total <= 1 + 10 * SCORE_ROUNDING, (
                f"the probabilities of {len(scores)} candidates for one token sum to {total:.3f}"
            )
            (token, count), *_ = Counter(tokens).most_common(1)
            assert count == 1, f"token {token} is proposed {count} times for one place"

    @needs("tiny drafter")
    def test_a_shorter_draft_begins_alike(self, kinfolk_drafter: DrafterKit) -> None:
        """A draft of which fewer tokens are wanted proposes as many at least, and the same ones."""
        drive, leases = started(kinfolk_drafter)
        anchors = dict.fromkeys(leases, ANCHOR)
        whole = drive.propose(anchors)
        for depth in sorted({1, (drive.plan.depth + 1) // 2, drive.plan.depth}):
            found = drive.propose(anchors, depth=depth)
            there = found.tokens.shape[1]
            assert there >= depth, f"{there} tokens are proposed of {depth} that are wanted"
            assert_same_proposals(first(found, depth), first(whole, depth))

    @needs("tiny drafter")
    def test_lanes_do_not_see_each_other(self, kinfolk_drafter: DrafterKit) -> None:
        """A lane gets the same proposals alone, beside others, behind padding, and while all that
        is not its own is NaN."""
        drive, leases = started(kinfolk_drafter)
        anchors = {lease: ANCHOR + index for index, lease in enumerate(leases)}
        together = drive.propose(anchors)
        for index, (lease, anchor) in enumerate(anchors.items()):
            alone = drive.propose({lease: anchor}, padding=2)
            assert_same_proposals(lane(together, index), alone)
        for index, lease in enumerate(leases):
            drive, again = started(kinfolk_drafter)
            assert again == leases
            drive.poison_all_but(lease)
            poisoned = drive.propose({lease: anchors[lease]})
            assert_same_proposals(poisoned, lane(together, index))

    @needs("tiny drafter")
    def test_drafts_write_to_the_arena_only(self, kinfolk_drafter: DrafterKit) -> None:
        """A draft changes neither the state of a sequence nor what it was given, and is the same
        when it is repeated."""
        drive, leases = started(kinfolk_drafter)
        anchors = dict.fromkeys(leases, ANCHOR)
        before = drive.outside_of_the_arena()
        with watched(drive, "draft"):
            first = drive.propose(anchors)
        after = drive.outside_of_the_arena()
        moved = [not torch.equal(a, b) for a, b in zip(after, before, strict=True)]
        assert not any(moved), "a draft changed the state of sequences"
        again = drive.propose(anchors)
        assert torch.equal(first.tokens, again.tokens), "the same draft proposed other tokens"
        assert torch.equal(first.scores, again.scores), "the same draft has other scores"

    @needs("tiny drafter")
    def test_the_target_is_left_alone(self, kinfolk_drafter: DrafterKit) -> None:
        """``extend`` and ``commit`` change the drafter's own layers, and nothing of the target or
        the step."""
        drive = kinfolk_drafter.driver()
        one, other = drive.open(), drive.open()
        with watched(drive, "extend", "commit"):
            drive.feed({one: kinfolk_drafter.tokens(70), other: kinfolk_drafter.tokens(9)})
            chain = kinfolk_drafter.tokens(4, seed=1)
            for parents in (None, (-1, 0, 0, 1)):
                drive.draft({one: (chain, parents), other: (chain[:2], None)})
                drive.keep({one: [0, 1], other: [0]})

    @needs("tiny drafter")
    def test_drafts_reach_to_the_end_of_the_context(self, kinfolk_drafter: DrafterKit) -> None:
        """Near the end of the context, where a block has no positions left, drafts are sound."""
        context = kinfolk_drafter.loaded.limits.context
        drive = kinfolk_drafter.driver()
        lease = drive.open(context)
        drive.feed({lease: kinfolk_drafter.tokens(context - 2)})
        for token in (1, 2):
            found = drive.propose({lease: ANCHOR})
            assert bool(found.scores.isfinite().all()), "a score is not finite"
            if token == 1:
                drive.feed({lease: [token]})

    @needs("tiny drafter")
    def test_nothing_is_read_on_the_host(self, kinfolk_drafter: DrafterKit) -> None:
        """No method reads a tensor on the host or makes one of its numbers, and equal shapes cause
        equal calls, so that all can be captured."""
        drive = kinfolk_drafter.driver(replays=True)
        calls: dict[tuple[str, str], list[list[tuple[object, ...]]]] = defaultdict(list)
        phase = ""

        def around(name: str, call: Callable[[], Any]) -> Any:
            with OnDevice() as mode:
                result = call()
            calls[name, phase].append(mode.calls)
            return result

        leases = [drive.open(), drive.open()]
        texts = (kinfolk_drafter.tokens(length, seed=length) for length in (5, 70))
        drive.feed(dict(zip(leases, texts, strict=True)))
        with wrapped(drive, around):
            for lease, kept in zip(leases, ([0, 2], [0, 1, 3]), strict=True):
                tree = kinfolk_drafter.tokens(len(ROWS_TREE), seed=lease.slot)
                phase = "a tree"
                drive.draft({lease: (tree, ROWS_TREE)})
                drive.keep({lease: kept})
                phase = "a chain"
                drive.draft({lease: (tree, None)})
                drive.keep({lease: range(len(kept))})
                phase = "decoding"
                drive.feed({lease: tree[:1]})
                drive.propose({lease: tree[0]})
        for (name, phase), (first, second) in calls.items():
            pairs = zip_longest(second, first)
            other = next((pair for pair in pairs if pair[0] != pair[1]), None)
            assert other is None, (
                f"{name}, {phase}: steps of equal shapes call other functions of torch: "
                f"{other[0]}, and before {other[1]}"
            )


def started(kit: DrafterKit) -> tuple[DraftDriver, list[SlotLease]]:
    """A driver with sequences of several lengths."""
    drive = kit.driver()
    texts = {drive.open(): kit.tokens(length, seed=length) for length in SEQUENCE_LENGTHS}
    drive.feed(texts)
    return drive, list(texts)


def lane(proposals: Proposals, index: int) -> Proposals:
    """The proposals of one lane."""
    parents = proposals.parents
    return Proposals(
        proposals.tokens[index : index + 1],
        proposals.scores[index : index + 1],
        None if parents is None else parents[index : index + 1],
    )


def first(proposals: Proposals, depth: int) -> Proposals:
    """The proposals of the first tokens."""
    parents = proposals.parents
    if parents is not None:
        parents = parents[:, : depth * proposals.tokens.shape[2]]
    return Proposals(proposals.tokens[:, :depth], proposals.scores[:, :depth], parents)


def siblings_of(proposals: Proposals) -> Iterator[list[tuple[int, float]]]:
    """(token, score) of the candidates that follow the same one."""
    tokens, scores = proposals.tokens.flatten(1), proposals.scores.flatten(1)
    columns = proposals.tokens.shape[2]
    for index in range(tokens.shape[0]):
        groups: dict[int, list[tuple[int, float]]] = {}
        for place in range(tokens.shape[1]):
            parent = place // columns
            if proposals.parents is not None:
                parent = int(proposals.parents[index, place])
                assert -1 <= parent < place, f"candidate {place} follows {parent}"
            pair = int(tokens[index, place]), float(scores[index, place])
            groups.setdefault(parent, []).append(pair)
        yield from groups.values()


# -- watching -------------------------------------------------------------------------------------


class WrappedDrafter:
    """A drafter whose methods are called through ``around(name, call)``."""

    def __init__(self, drafter: Any, around: Callable[[str, Callable[[], Any]], Any]) -> None:
        self.drafter, self.around = drafter, around

    def extend(self, *arguments: Any) -> Any:
        return self._call("extend", arguments)

    def commit(self, *arguments: Any) -> Any:
        return self._call("commit", arguments)

    def draft(self, *arguments: Any) -> Any:
        return self._call("draft", arguments)

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return self.around(name, lambda: getattr(self.drafter, name)(*arguments))


@contextmanager
def wrapped(drive: DraftDriver, around: Callable[[str, Callable[[], Any]], Any]) -> Iterator[None]:
    drafter = drive.drafter
    drive.drafter = WrappedDrafter(drafter, around)
    try:
        yield
    finally:
        drive.drafter = drafter


@contextmanager
def watched(drive: DraftDriver, *names: str) -> Iterator[None]:
    """Assert that these methods change no layer of the target, and no tensor that they are given
    beside the state."""
    drafter = drive.drafter

    class WatchedDrafter(WrappedDrafter):
        def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
            if name not in names:
                return getattr(drafter, name)(*arguments)
            given = list(tensors_in(arguments[:-1]))
            before = [tensor.clone() for tensor in given], targets_state(drive)
            result = getattr(drafter, name)(*arguments)
            after = given, targets_state(drive)
            for what, old, new in zip(
                ("what it was given", "a layer of the target"), before, after, strict=True
            ):
                same = all(map(_same_bytes, old, new))
                assert same, f"{name} changed {what}"
            return result

    drive.drafter = WatchedDrafter(drafter, lambda name, call: call())
    try:
        yield
    finally:
        drive.drafter = drafter


def targets_state(drive: DraftDriver) -> list[torch.Tensor]:
    """Copies of what the target's layers keep, without the dummies of padding."""
    state, copies = drive.state, []
    for pool in state.pools:
        for (owner, _), section in pool.layout.sections.items():
            if owner not in drive.layers:
                copies += [plane[1:].clone() for plane in pool.planes(pool.data, section)]
    for layer in range(drive.layers.start):
        if isinstance(state.plan.layers[layer], Recurrent):
            copies += [tensor[1:].clone() for tensor in state.recurrent(layer).values()]
    return copies


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value, its records and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from tensors_in(getattr(value, each.name))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(
        one.contiguous().view(torch.uint8) if one.ndim else one,
        other.contiguous().view(torch.uint8) if other.ndim else other,
    )
