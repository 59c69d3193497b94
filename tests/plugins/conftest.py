"""Plugins for tests: modules built from source text, and distributions on the path."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kinfolk.descriptors import FamilyBase
from kinfolk.loader import PluginRecord, load
from kinfolk.model_api import ModelInfo
from kinfolk.plans import Paged, Section, StateLimits, StatePlan
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

DATA = Path(__file__).parent / "data"
_numbers = itertools.count()

PREAMBLE = """
from kinfolk import hookimpl
from kinfolk.descriptors import *
KINFOLK_API = (1, 0)
"""


@pytest.fixture(autouse=True)
def every_installed_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all installed plugins visible: these tests test discovery itself."""
    monkeypatch.delenv("KINFOLK_PLUGINS", raising=False)


@pytest.fixture
def toy_site() -> Path:
    """A folder with the distribution ``kinfolk-toy``, as an installer leaves it."""
    return DATA / "toy"


@pytest.fixture
def plugin() -> Callable[..., ModuleType]:
    """``plugin(body)`` -> a plugin module; the imports and KINFOLK_API come before the body."""

    def make(body: str = "", preamble: str = PREAMBLE) -> ModuleType:
        module = ModuleType(f"made_plugin_{next(_numbers)}")
        exec(preamble + textwrap.dedent(body), module.__dict__)
        return module

    return make


@pytest.fixture
def record_of(plugin: Callable[..., ModuleType]) -> Callable[..., PluginRecord]:
    """``record_of(body)`` -> the record of that plugin, loaded; a failed one provides nothing."""

    def make(body: str, **options: str) -> PluginRecord:
        record = load(PluginRecord("mine", "mine", "kinfolk-mine", "3.1"), plugin(body, **options))
        assert record.status == "ok" or not record.provided
        return record

    return make


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``site(name, distribution, body)`` puts an installed plugin on the path, without pip."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def install(
        name: str,
        distribution: str,
        body: str | None = None,
        *,
        module: str = "",
        version: str = "1.0",
        value: str | None = None,
    ) -> Path:
        module = module or f"site_{name}_{next(_numbers)}"
        if body is not None:
            text = PREAMBLE + textwrap.dedent(body)
            (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8"
        )
        points = info / "entry_points.txt"
        head = points.read_text(encoding="utf-8") if points.exists() else "[kinfolk]\n"
        points.write_text(f"{head}{name} = {value or module}\n", encoding="utf-8")
        return info

    yield install
    for name in set(sys.modules) - before:
        if name.startswith("site_"):
            del sys.modules[name]


@pytest.fixture
def discover(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """``discover()`` -> the registry of the installed plugins."""

    def run(**options: Any) -> Registry:
        return Registry.discover(load_settings(**options))

    return run


@pytest.fixture
def family_class() -> type[FamilyBase]:
    """A valid family; tests replace one of its parts by an invalid one."""

    class Sound(FamilyBase):
        def __init__(self, name: str = "sound", architectures: tuple[str, ...] = ("sound",)):
            self.name, self.architectures = name, architectures

        def read_config(self, meta: Any) -> Any:
            return meta

        def weight_plan(self, config: Any, inventory: Any) -> Any:
            return None

        def build(self, config: Any, weights: Any, context: Any) -> Any:
            return None

        def hooks(self, config: Any) -> object:
            return config

    return Sound


@pytest.fixture
def state_plan() -> StatePlan:
    return StatePlan((Paged((Section("k", 1, 8), Section("v", 1, 8))),))


@pytest.fixture
def limits() -> StateLimits:
    return StateLimits(slots=1, checkpoints=0, blocks=(4,), context=128, step_rows=64)


@pytest.fixture
def info(state_plan: StatePlan) -> ModelInfo:
    return ModelInfo("a model", "sound", "sound", state_plan, 100, 128)
