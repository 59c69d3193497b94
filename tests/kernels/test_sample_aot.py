"""Sampling, drafts and the outputs of a step compile for every GPU we name, for the largest
vocabulary.

They are compiled in a process of their own, as this tier's interprets kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(600)]

CAPABILITIES = (86, 89, 120)
SHARED = 99 * 1024
SPILLED = 96
"""Bytes a thread: where a program holds all buckets of a row."""


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def draft_launches():
    from kinfolk_kernels.draft_trees.op import DraftTreesArguments
    from kinfolk_kernels.draft_trees.triton_backend import build
    from kinfolk_kernels.place_drafts.op import DraftedRows, PlaceDraftsArguments, StoredDrafts
    from kinfolk_kernels.place_drafts.triton_backend import place

    sequences, rows = 4, 64
    of_sequence = empty(sequences, dtype=torch.int64)
    spans = empty(sequences, 4, dtype=torch.int32)
    tables = DraftedRows(*[empty(rows, dtype=torch.int64)] * 7)
    for depths, candidates, nodes in ((7, 4, 8), (15, 8, 22), (15, 63, 63)):
        scores, drafts = (
            empty(sequences, depths, candidates),
            empty(sequences, nodes, dtype=torch.int64),
        )
        for chain_seeded in (False, True):
            arguments = DraftTreesArguments(nodes, chain_seeded, scores.device)
            given = scores.long(), scores, of_sequence
            yield build(arguments, *given, drafts, drafts, of_sequence)
        stored = StoredDrafts(of_sequence, drafts, drafts, of_sequence)
        arguments = PlaceDraftsArguments(262144, scores.device)
        yield place(arguments, stored, spans, of_sequence, of_sequence, tables)


def all_launches():
    from kinfolk_kernels.accept_drafts.triton_backend import steps
    from kinfolk_kernels.pack_outputs.triton_backend import pack
    from kinfolk_kernels.sample import triton_backend as kernel

    yield from draft_launches()
    for n in (1, 16):
        ids = empty(n, dtype=torch.int64)
        logits = empty(n, 262144)
        for greedy in (True, False):
            rows = SimpleNamespace(
                greedy=greedy,
                **dict.fromkeys(("temperature", "top_p", "min_p"), empty(n)),
                **dict.fromkeys(("top_k", "seed", "position"), ids),
            )
            scratch = kernel.Scratch.make(logits, kernel.tile_for(n), draws=not greedy)
            yield from kernel.launches(logits, rows, scratch, ids, ids.bool())
        hidden, column = empty(n, 5120, dtype=torch.bfloat16), ids[:, None]
        spans, packed = empty(n, 4, dtype=torch.int32), empty(5 * n, dtype=torch.int64)
        yield pack(hidden, spans, ids.bool(), column, ids, ids, ids, column, packed)
        for width in (4, 16, 64):
            rows = empty(n, width, dtype=torch.int64)
            yield steps(rows, rows, rows, ids, rows, ids, ids)


@pytest.fixture(scope="module")
def usages():
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nothing_takes_more_than_there_is(usages, capability):
    found = {name: usage for name, usage in usages.items() if name.startswith(f"sm_{capability} ")}
    assert found
    for name, (shared, spilled, inner) in found.items():
        assert shared <= SHARED, name
        assert spilled <= SPILLED, name
        assert inner <= 2, name


def main():
    from kinfolk_kernels.aot import compile_aot

    found = {}
    for number, launch in enumerate(all_launches()):
        for capability in CAPABILITIES:
            usage = compile_aot(launch, capability)
            name = f"sm_{capability} {launch.kernel.__name__} {number}"
            found[name] = (usage.shared, usage.spilled, usage.loop_spills)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
