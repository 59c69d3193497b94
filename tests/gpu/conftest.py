"""The fixtures of the kernel tests, on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from digest_inputs import assert_same_digest, query_steps, scored_chunks, stored_keys
from kernel_inputs import (
    assert_near,
    candidates,
    drafted_sequences,
    numbers,
    placements,
    random_planes,
    steps,
)

__all__ = [
    "assert_near",
    "assert_same_digest",
    "candidates",
    "drafted_sequences",
    "numbers",
    "placements",
    "query_steps",
    "random_planes",
    "scored_chunks",
    "steps",
    "stored_keys",
]


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """Several processes share the device, and what one has reserved the others lack. What a test
    allowed its process (``--memory``), the next one does not inherit."""
    yield
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.fixture
def on_gpu() -> Callable[[Any], Any]:
    """Copies a dataclass to the device, with its tensors and those of nested dataclasses."""

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
    """``with poisoned():`` fills memory that is allocated inside with NaN."""

    @contextmanager
    def fill() -> Iterator[None]:
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)

    return fill
