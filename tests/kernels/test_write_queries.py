"""The ring of queries against a list of what every sequence committed."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.write_queries.op import (
    RING_ROWS,
    WriteQueriesArguments,
    recent,
    write_queries,
)

CPU = torch.device("cpu")


def test_the_ring_has_the_last_committed_queries_of_every_slot(query_steps):
    for seed in range(20):
        ring, committed = torch.full((5, RING_ROWS, 2, 3), torch.nan), {}
        for step, kept in query_steps(seed, heads=2, dim=3):
            write_queries(WriteQueriesArguments(torch.float32, CPU), *step, ring)
            for slot, queries in kept.items():
                committed.setdefault(slot, []).extend(queries)
            for slot, queries in committed.items():
                rows = min(len(queries), RING_ROWS)
                found = recent(ring, slot, len(queries), rows)
                assert torch.equal(found, torch.stack(queries[-rows:]))
        assert bool(ring[0].isnan().all())


def test_more_rows_than_there_are_cannot_be_asked_for():
    ring = torch.zeros(1, RING_ROWS, 1, 1)
    for length, rows in ((100, 9), (3, 4), (5, 0)):
        with pytest.raises(ValueError, match="1 to"):
            recent(ring, 0, length, rows)
