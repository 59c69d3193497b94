"""Landing experts, by the reference and in torch, against a plain model."""

from __future__ import annotations

import pytest
from fetch_model import assert_lands, scenes
from hypothesis import given

from kinfolk_kernels.land import op as reference
from kinfolk_kernels.land import torch_backend as fast

BACKENDS = pytest.mark.parametrize("backend", [reference, fast], ids=["ref", "torch"])


@BACKENDS
@given(scene=scenes())
def test_what_rows_chose_and_is_far_lands_and_nothing_else_changes(backend, scene):
    assert_lands(backend.land, scene)
