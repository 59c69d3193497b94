"""The block on the kernels of the GPU, interpreted, against plain torch."""

from __future__ import annotations

import pytest
from mtp_bench import random_rows, relative

pytestmark = pytest.mark.interpreter

BOUND = 1e-4
KERNELS = ("qk_rope_write", "gated_attention", "rms_norm", "add_rms_norm", "act_and_mul")


def test_kernels_give_what_plain_torch_gives(make):
    """Passes of one, two and three rows a lane, beside another lane and padding."""
    pair = make(draft_tokens=3, op=dict.fromkeys(KERNELS, "triton"))
    lease, other = pair.bench.open(), pair.bench.open()
    for step, count in enumerate((7, 60)):
        rows = random_rows(count, step)
        pair.bench.extend({lease: rows, other: (rows[0][:3], rows[1][:3])})
        pair.reference.extend(*rows)
    tokens, hidden = random_rows(4, 9)
    pair.bench.verify(lease, tokens, hidden, [0, 1])
    pair.reference.extend(tokens[:2], hidden[:2])
    pair.bench.draft({other: 8, lease: 3}, lanes=4)
    assert relative(pair.bench.rows(1), pair.expected(3)) <= BOUND
    assert all((op, "triton") in pair.bench.loaded.ops.decisions for op in KERNELS)
