"""The kernel that keeps queries, against the reference."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.write_queries import triton_backend as kernel
from kinfolk_kernels.write_queries.op import RING_ROWS, WriteQueriesArguments, write_queries

CPU = torch.device("cpu")

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(("heads", "dim"), [(1, 64), (6, 128), (9, 256), (3, 80)])
def test_equals_the_reference(query_steps, heads, dim):
    arguments = WriteQueriesArguments(torch.float32, CPU)
    assert kernel.supports(arguments)
    rings = torch.full((2, 5, RING_ROWS, 3, heads, dim), -7.0)
    for step, _ in query_steps(heads, heads, dim, 4):
        write_queries(arguments, *step, rings[0, :, :, 1])
        kernel.write_queries(arguments, *step, rings[1, :, :, 1])
        assert torch.equal(rings[0], rings[1])


def test_strided_queries_and_float16(query_steps):
    arguments = WriteQueriesArguments(torch.float16, CPU)
    rings = torch.full((2, 5, RING_ROWS, 2, 64), -7.0).half()
    for (queries, *rest), _ in query_steps(1, 2, 64, 4):
        wide = torch.full((len(queries), 2, 128), torch.nan).half()
        wide[..., 64:] = queries
        write_queries(arguments, queries.half(), *rest, rings[0])
        kernel.write_queries(arguments, wide[..., 64:], *rest, rings[1])
    assert torch.equal(rings[0], rings[1])


def test_what_it_cannot_run_it_refuses():
    verdict = kernel.supports(WriteQueriesArguments(torch.int8, CPU))
    assert not verdict
    assert "queries of torch.int8" in verdict.reason
