"""Models with a block for multi-token prediction, beside the plain implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from mtp_bench import Bench, Reference, open_model, random_rows, write_model

from kinfolk.registry import Registry
from kinfolk.settings import load_settings


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.discover(load_settings())


@dataclass
class Pair:
    """The drafter and the plain implementation of the same weights."""

    bench: Bench
    reference: Reference

    def feed(self, lease: Any, count: int, seed: int = 3) -> None:
        rows = random_rows(count, seed)
        self.bench.extend({lease: rows})
        self.reference.extend(*rows)

    def expected(self, token: int) -> torch.Tensor:
        return self.reference.draft(token, self.bench.plan.depth)[0]


@pytest.fixture
def make(tmp_path: Path, registry: Registry) -> Callable[..., Pair]:
    """``make(case, change=, right=, settings…)``: a pair. ``change`` edits the tensors of the
    file, the plain implementation has those of the file without it if ``right``."""

    def pair(
        case: str = "qwen35", change: Any = lambda arrays: None, right: Any = None, **settings: Any
    ) -> Pair:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
        arrays = write_model(path, case, change)
        if right is not None:
            arrays = write_model(path.with_suffix(".right.gguf"), case, right)
        settings = {"draft_tokens": 4, **settings}
        post = settings.get("draft_option", {}).get("hidden") != "pre"
        bench = Bench(open_model(path, registry, **settings))
        return Pair(bench, Reference(arrays, post_norm=post))

    return pair


@pytest.fixture(params=["qwen35", "qwen35moe"])
def case(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found
