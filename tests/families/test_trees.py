"""Random trees, batched over sequences: every path equals linear decoding, every commit too."""

from __future__ import annotations

import random

import pytest
import torch

from kinfolk.sched.plan import Item, ItemKind

BOUND = 2e-4


def random_tree(rng, size):
    """Parents with at least one branch where there is room for one."""
    return [-1, *(rng.randrange(row) for row in range(1, size))]


def path_to(parents, row):
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


@pytest.mark.parametrize("seed", range(4))
def test_every_path_of_a_tree_equals_linear_decoding(case, driver, reference, row_error, seed):
    rng = random.Random(seed)
    tokens, _ = reference(case)
    lengths, sizes = (5, 64, 77), (9, 21, 14)
    drive = driver(case)
    leases = [drive.open() for _ in lengths]
    starts = [tokens[seed : seed + n] for n in lengths]
    drive.feed(dict(zip(leases, starts, strict=True)))
    trees = [
        ([rng.randrange(5, 700) for _ in range(size)], random_tree(rng, size)) for size in sizes
    ]
    logits = drive.draft(dict(zip(leases, trees, strict=True)))
    paths = {}
    for lease, start, (drafted, parents) in zip(leases, starts, trees, strict=True):
        leaves = [row for row in range(len(parents)) if row not in parents]
        branches = [path_to(parents, leaf) for leaf in leaves]
        texts = [[drafted[row] for row in path] for path in branches]
        for path, expected in zip(branches, decoded(driver(case), start, texts), strict=True):
            assert row_error(logits[lease][path], expected) <= BOUND
        path = path_to(parents, rng.choice(leaves))
        paths[lease] = path[: rng.randint(1, len(path))]
    drive.keep(paths)
    assert_same_as_feeding_the_kept(case, driver, drive, leases, starts, trees, paths, row_error)


def decoded(drive, start, texts):
    """Logits of each text after ``start``, token by token; one text per slot at a time."""
    found, slots = [], drive.state.limits.slots
    for first in range(0, len(texts), slots):
        leases = {drive.open(): text for text in texts[first : first + slots]}
        drive.feed(dict.fromkeys(leases, start))
        found += drive.feed(leases, rows=1).values()
        for lease in leases:
            drive.kv_cache.tables.release(lease)
    return found


def assert_same_as_feeding_the_kept(case, driver, drive, leases, starts, trees, paths, row_error):
    ahead = [17, 23, 300, 41]
    after = drive.feed(dict.fromkeys(leases, ahead), rows=2)
    for lease, start, (drafted, _) in zip(leases, starts, trees, strict=True):
        check = driver(case)
        alone = check.open()
        check.feed({alone: [*start, *(drafted[row] for row in paths[lease])]})
        assert row_error(after[lease], check.feed({alone: ahead})[alone]) <= BOUND


def test_ragged_chains_commit_what_each_keeps(case, driver, reference, row_error):
    tokens, _ = reference(case)
    drive = driver(case)
    leases = [drive.open() for _ in range(4)]
    starts = [tokens[:n] for n in (10, 63, 64, 65)]
    drive.feed(dict(zip(leases, starts, strict=True)))
    chains = [(tokens[100 : 100 + n], None) for n in (1, 2, 7, 5)]
    drive.draft(dict(zip(leases, chains, strict=True)))
    paths = {lease: list(range(n)) for lease, n in zip(leases, (1, 1, 7, 3), strict=True)}
    drive.keep(paths)
    assert_same_as_feeding_the_kept(case, driver, drive, leases, starts, chains, paths, row_error)


def test_a_draft_beside_a_slice_and_a_decode(case, driver, reference, row_error):
    """One step with a prompt's slice, a plain row, a chain and a tree."""
    tokens, expected = reference(case)
    drive = driver(case)
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
                (tokens[90], 9, tokens[91], tokens[92]),
                90,
                parents=(-1, 0, 0, 2),
            ),
        ]
    )
    wanted = (expected[:100], expected[70:74], expected[50:51], expected[[90, 91, 92]])
    kept_rows = (rows[0], rows[1], rows[2], rows[3][[0, 2, 3]])
    for a, b in zip(kept_rows, wanted, strict=True):
        assert row_error(a, b) <= BOUND


def test_drafting_changes_nothing_until_it_is_kept(case, driver, reference):
    tokens, _ = reference(case)
    drive = driver(case)
    lease = drive.open()
    drive.feed({lease: tokens[:70]})
    before = committed(drive, lease)
    drive.draft({lease: ([3, 4, 5, 6], (-1, 0, 0, 1))})
    drive.draft({lease: ([3, 4, 5, 6], None)})
    after = committed(drive, lease)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def committed(drive, lease):
    """Copies of the state that the sequence keeps of its committed positions."""
    copies = [tensor[lease.slot].clone() for tensor in drive.state.recurrent_tensors()]
    length = drive.kv_cache.tables.length(lease)
    for pool in drive.state.pools:
        for chunk, block in pool.tables[lease.slot].items():
            rows = max(0, min(64, length - chunk * 64))
            for section in pool.layout.sections.values():
                copies.append(pool.view(pool.data, section)[block, :, :rows].clone())
    return copies
