"""Checks of drafted rows: chains and trees, of which verification keeps some rows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.sched.plan import Item, ItemKind
from kinfolk.state.chunks import SlotLease
from kinfolk.testing.checks.numbers import few
from kinfolk.testing.driver import Driver, Parents
from kinfolk.testing.kit import Kit, assert_same
from kinfolk.testing.marks import needs
from kinfolk.types import CHUNK_POSITIONS

Drafts = Mapping[SlotLease, tuple[list[int], Parents]]
STARTS = (5, CHUNK_POSITIONS - 1, CHUNK_POSITIONS, 77)
"""Committed lengths at which drafts begin: inside a chunk, and around its end."""


class DraftChecks:
    """Drafted rows run in one step and change no state until they are kept."""

    @needs("tiny")
    def test_drafts_change_nothing_until_kept(self, kinfolk_kit: Kit) -> None:
        """Drafted rows do not change a sequence's state."""
        drive = kinfolk_kit.driver()
        lease = drive.open()
        drive.feed({lease: kinfolk_kit.tokens[:70]})
        drive.kv_cache.tables.extend(lease, 70 + 8)
        drive.apply()
        before = drive.kept(lease)
        draft = kinfolk_kit.random_tokens(6, seed=1)
        for parents in (None, (-1, 0, 0, 1, 3, 3)):
            drive.draft({lease: (draft, parents)})
            assert all(torch.equal(a, b) for a, b in zip(drive.kept(lease), before, strict=True))
        logits = drive.feed({lease: kinfolk_kit.tokens[70:]})[lease]
        assert_same(logits, kinfolk_kit.linear(kinfolk_kit.tokens)[70:])

    @needs("tiny")
    @few
    @given(seed=st.integers(0, 1000))
    def test_chains_go_on_from_what_is_kept(self, kinfolk_kit: Kit, seed: int) -> None:
        """Several sequences draft chains, and each keeps another number of rows."""
        source = random.Random(seed)
        drive, starts = started(kinfolk_kit, seed)
        drafts: Drafts = {
            lease: (kinfolk_kit.random_tokens(source.randint(1, 9), seed=lease.slot), None)
            for lease in starts
        }
        logits = drive.draft(drafts)
        for lease, (tokens, _) in drafts.items():
            whole = kinfolk_kit.linear([*starts[lease], *tokens])
            assert_same(logits[lease], whole[len(starts[lease]) :])
        paths = {
            lease: range(source.randint(1, len(tokens))) for lease, (tokens, _) in drafts.items()
        }
        keep_and_go_on(kinfolk_kit, drive, starts, drafts, paths)

    @needs("tiny")
    @few
    @given(seed=st.integers(0, 1000))
    def test_paths_of_trees_equal_linear_decoding(self, kinfolk_kit: Kit, seed: int) -> None:
        """Every path of a random tree has the logits of the same tokens decoded one by one, and a
        sequence continues from the path that is kept."""
        source = random.Random(seed)
        drive, starts = started(kinfolk_kit, seed, sequences=2)
        drafts: Drafts = {lease: random_tree(kinfolk_kit, source) for lease in starts}
        logits = drive.draft(drafts)
        paths = {}
        for lease, (tokens, parents) in drafts.items():
            assert parents is not None
            ends = [row for row in range(len(parents)) if row not in parents]
            for end in ends:
                path = path_to(parents, end)
                alone = kinfolk_kit.linear([*starts[lease], *(tokens[row] for row in path)])
                assert_same(logits[lease][path], alone[len(starts[lease]) :])
            path = path_to(parents, source.choice(ends))
            paths[lease] = path[: source.randint(1, len(path))]
        keep_and_go_on(kinfolk_kit, drive, starts, drafts, paths)

    @needs("tiny")
    def test_drafts_stand_beside_prompts_and_decodes(self, kinfolk_kit: Kit) -> None:
        """One step with a slice of a prompt, a chain, a plain row and a tree."""
        tokens = kinfolk_kit.tokens
        drive = kinfolk_kit.driver()
        prompt, plain, chain, tree = (drive.open() for _ in range(4))
        drive.feed({plain: tokens[:50], chain: tokens[:70], tree: tokens[:90]})
        rows = drive.step(
            [
                Item(prompt, "", ItemKind.PREFILL, tuple(tokens[:100]), 0),
                Item(chain, "", ItemKind.VERIFY, tuple(tokens[70:74]), 70),
                Item(plain, "", ItemKind.DECODE, (tokens[50],), 50),
                Item(
                    tree,
                    "",
                    ItemKind.VERIFY,
                    (tokens[90], 1, tokens[91], tokens[92]),
                    90,
                    parents=(-1, 0, 0, 2),
                ),
            ]
        )
        expected = kinfolk_kit.linear(tokens)
        assert_same(rows[0], expected[:100])
        assert_same(rows[1], expected[70:74])
        assert_same(rows[2], expected[50:51])
        assert_same(rows[3][[0, 2, 3]], expected[90:93])


def started(
    kit: Kit, seed: int, sequences: int = len(STARTS)
) -> tuple[Driver, dict[SlotLease, list[int]]]:
    """A driver with sequences of several lengths, and their texts."""
    drive = kit.driver()
    lengths = random.Random(seed).sample(STARTS, sequences)
    starts = {drive.open(): kit.tokens[:length] for length in lengths}
    drive.feed(starts)
    return drive, starts


def keep_and_go_on(
    kit: Kit,
    drive: Driver,
    starts: Mapping[SlotLease, list[int]],
    drafts: Drafts,
    paths: Mapping[SlotLease, Sequence[int]],
) -> None:
    """Keep a path of each draft; later logits are those of a sequence fed with its tokens."""
    drive.keep(paths)
    ahead = kit.random_tokens(4, seed=99)
    logits = drive.feed(dict.fromkeys(starts, ahead), rows=2)
    for lease, start in starts.items():
        kept = [drafts[lease][0][row] for row in paths[lease]]
        assert_same(logits[lease], kit.linear([*start, *kept, *ahead])[-len(ahead) :])


def random_tree(kit: Kit, source: random.Random) -> tuple[list[int], list[int]]:
    """Random tokens, and the parent row of each."""
    size = source.randint(2, 16)
    parents = [-1, *(source.randrange(row) for row in range(1, size))]
    return kit.random_tokens(size, seed=source.randrange(1000)), parents


def path_to(parents: Sequence[int], row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]
