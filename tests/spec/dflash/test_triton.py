"""The drafter on the kernels of the GPU, interpreted, against the plain implementation."""

from __future__ import annotations

import pytest
from dflash_bench import SHAPES, Bench, TableTarget, random_features, relative, write_drafter
from dflash_reference import Reference, random_tensors

from kinfolk.ops.binding import Ops
from kinfolk.ops.builtin import OP_BACKENDS

pytestmark = pytest.mark.interpreter

BOUND = 1e-4
KERNELS = ("qk_rope_write", "gated_attention", "rms_norm", "add_rms_norm", "act_and_mul")


@pytest.mark.parametrize("name", ["sliding, then full", "gates of heads", "convolutions"])
def test_kernels_give_what_the_plain_implementation_gives(name, tmp_path):
    shape, ops = SHAPES[name], Ops(OP_BACKENDS, dict.fromkeys(KERNELS, "triton"))
    tensors, target = random_tensors(shape), TableTarget(shape)
    path = write_drafter(tmp_path / "draft.gguf", shape, tensors)
    bench = Bench(path, target, shape, ops=ops)
    reference = Reference(shape, tensors, target.table, target.head)
    lease, other = bench.open(), bench.open()
    for step, rows in enumerate((7, 30)):
        features = random_features(shape, rows, seed=step)
        bench.extend({lease: features, other: features[:3]})
        reference.extend(features)
    bench.verify(lease, random_features(shape, 4, seed=9), [0, 1])
    reference.extend(random_features(shape, 4, seed=9)[:2])
    hidden = bench.hidden({other: 8, lease: 3})[1]
    assert relative(hidden, reference.hidden(3)) <= BOUND
    assert all((op, "triton") in ops.decisions for op in KERNELS)
