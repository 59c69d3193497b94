"""The back ends in Triton are bound first where kernels run."""

from __future__ import annotations

import pytest

from kinfolk.ops.binding import Ops
from kinfolk.ops.builtin import OP_BACKENDS

pytestmark = pytest.mark.interpreter

TRITON = [backend for backend in OP_BACKENDS if backend.name == "triton"]


@pytest.mark.parametrize("backend", TRITON, ids=lambda backend: backend.op)
def test_they_are_asked_first_and_only_where_kernels_run(backend):
    assert "triton" not in Ops(OP_BACKENDS).backends(backend.op)
    assert Ops(OP_BACKENDS, device="cuda").backends(backend.op)[0] == "triton"
    assert Ops(OP_BACKENDS, {backend.op: "triton"}).backends(backend.op) == ("triton",)
