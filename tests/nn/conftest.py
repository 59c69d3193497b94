"""A build context, and a step without sequences."""

from __future__ import annotations

import pytest
import torch

from kinfolk.nn.context import BuildContext
from kinfolk.ops.binding import Ops
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk.plans import Paged, Section, StatePlan


@pytest.fixture
def context() -> BuildContext:
    return BuildContext(
        Ops(OP_BACKENDS),
        torch.device("cpu"),
        torch.float32,
        StatePlan((Paged((Section("k", 1, 8),)),)),
        context=300,
    )
