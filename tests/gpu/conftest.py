"""The rows and numbers of the kernel tests, on the device."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


def _kernel_fixtures() -> ModuleType:
    """The conftest of the kernel tests; its folder is no package."""
    path = Path(__file__).parents[1] / "kernels" / "conftest.py"
    spec = spec_from_file_location("kernel_fixtures", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


_fixtures = _kernel_fixtures()
steps = _fixtures.steps
assert_near = _fixtures.assert_near
numbers = _fixtures.numbers
random_planes = _fixtures.random_planes
drafted_lanes = _fixtures.drafted_lanes


@pytest.fixture
def on_gpu() -> Callable[[Any], Any]:
    """A dataclass with its tensors, and those of dataclasses in it, on the device."""

    def move(value: Any) -> Any:
        moved = {}
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            if isinstance(part, torch.Tensor):
                moved[field.name] = part.cuda()
            elif dataclasses.is_dataclass(part):
                moved[field.name] = move(part)
        return dataclasses.replace(value, **moved)

    return move


@pytest.fixture
def poisoned() -> Callable[[], AbstractContextManager[None]]:
    """``with poisoned():`` memory that is allocated inside is NaN."""

    @contextmanager
    def fill() -> Iterator[None]:
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)

    return fill
