"""Sessions over the toy engine, and engines of tiny models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wire_scenes import Scene

from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.registry import Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.settings import load_settings


@pytest.fixture
def scene(tmp_path: Path) -> Callable[..., Scene]:
    """``scene(wire, slots=2, ...)``: a session with the files a.bin, b.bin and long.bin."""

    def make(*arguments: Any, **options: Any) -> Scene:
        made = Scene(tmp_path, *arguments, **options)
        for name, tokens in PROMPTS.items():
            made.file(f"{name}.bin", tokens)
        return made

    return make


PROMPTS = {
    "a": tuple(range(5, 25)),
    "b": tuple(range(1, 12)),
    "long": tuple(number * number % 29 for number in range(300)),
}


@pytest.fixture(scope="session")
def prompts() -> dict[str, tuple[int, ...]]:
    """What is in the files."""
    return PROMPTS


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.discover(load_settings())


@pytest.fixture(scope="session")
def load(registry: Registry, cases: Path) -> Callable[..., LoadedModel]:
    """``load(path=..., registry=..., **settings)``: a tiny model, that of a reference case."""

    def open_model(
        path: Path = cases / "qwen35.gguf", registry: Registry = registry, **settings: Any
    ) -> LoadedModel:
        options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 8, **settings}
        return load_model(path, load_settings(**options), registry)

    return open_model


@pytest.fixture(scope="session")
def loaded(load: Callable[..., LoadedModel]) -> LoadedModel:
    return load()


@pytest.fixture
def engines() -> list[Engine]:
    """The engines of a test, in the order of their starts."""
    return []


@pytest.fixture
def engine(loaded: LoadedModel, engines: list[Engine]) -> Iterator[Callable[..., Engine]]:
    """``engine(drafter=None, model=None, **limits)``: an engine that must hold nothing in the
    end."""

    def start(drafter: Any = None, model: LoadedModel | None = None, **limits: Any) -> Engine:
        model = model or loaded
        values = {"slots": 8, "context": 512, "step_tokens": 128, "slice": 32, "max_queue": 0}
        vocabulary = model.info.vocabulary
        scheduler = SchedulerLimits(**{**values, "vocabulary": vocabulary, **limits})
        engines.append(Engine(model, scheduler, drafter))
        return engines[-1]

    yield start
    for each in engines:
        each.close()
        each.check_integrity()
