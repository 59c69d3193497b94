"""Plugins that are valid or have one error: a family as `kinfolk new-family` writes it, drafters.

Of two drafters one has paged state and is that of the engine's tests; the other has recurrent state
and is the example.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import attending_drafter
import pytest

from kinfolk.descriptors import DrafterSpec, Family
from kinfolk.registry import Registry
from kinfolk.scaffold.write import NewFamily, write_family
from kinfolk.testing.drafter_kit import DrafterKit
from kinfolk.testing.kit import Kit

NAME = "olive"
EXAMPLE = "kinfolk-drafter-demo"


@pytest.fixture(scope="session")
def olive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a new plugin, whose package can be imported."""
    folder = tmp_path_factory.mktemp("plugin")
    write_family(NewFamily(NAME), folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "kinfolk_olive"]:
        del sys.modules[name]


@pytest.fixture
def kit_of(olive: Path, tmp_path: Path) -> Callable[..., Kit]:
    """``kit_of(**members)``: the kit on the family with some of its members replaced.

    Each is called with the valid family's member, then the arguments.
    """
    numbers = count()

    def make(**members: Callable[..., Any]) -> Kit:
        family = importlib.import_module("kinfolk_olive.family").Olive()
        for name, replacement in members.items():
            setattr(family, name, _bound(replacement, getattr(family, name)))
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return Kit(NAME, folder, registry_of(family))

    return make


def _bound(replacement: Callable[..., Any], original: Any) -> Any:
    if not callable(replacement):
        return replacement
    return lambda *arguments: replacement(original, *arguments)


def registry_of(family: Family) -> Registry:
    module: Any = types.ModuleType("kinfolk_olive_changed")
    source = importlib.import_module("kinfolk_olive.plugin")
    module.KINFOLK_API = source.KINFOLK_API
    from kinfolk import hookimpl

    @hookimpl
    def register_families() -> list[Family]:
        return [family]

    module.register_families = register_families
    sys.modules[module.__name__] = module
    return Registry.build({NAME: module})


@pytest.fixture(scope="session")
def example_drafter(repo: Path) -> Iterator[DrafterSpec]:
    """The example's drafter, whose package can be imported."""
    folder = str(repo / "examples" / EXAMPLE)
    sys.path.insert(0, folder)
    (spec,) = importlib.import_module("kinfolk_drafter_demo.plugin").register_drafters()
    yield spec
    sys.path.remove(folder)
    for name in [name for name in sys.modules if name.split(".")[0] == "kinfolk_drafter_demo"]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def drafter_kit(example_drafter, tmp_path_factory) -> Callable[..., DrafterKit]:
    """``drafter_kit("paged" or "recurrent", **fields)``: the kit on a drafter, some fields of whose
    spec are replaced: a function or class where the spec has a reference."""
    numbers = count()
    sound = {"paged": attending_drafter.spec().value, "recurrent": example_drafter}
    sound["host"] = DrafterSpec("told", create="nobody:create")

    def make(which: str, **fields: Any) -> DrafterKit:
        module: Any = types.ModuleType(f"changed_drafter_{next(numbers)}")
        sys.modules[module.__name__] = module
        for name, value in fields.items():
            if callable(value):
                setattr(module, name, value)
                fields[name] = f"{module.__name__}:{name}"
        tiny = sound[which].tiny and replace(sound[which].tiny, family="qwen35")
        spec = replace(sound[which], **({"tiny": tiny} | fields))
        return DrafterKit(
            spec.name, tmp_path_factory.mktemp("drafter"), registry_with(module, spec)
        )

    return make


def registry_with(module: Any, spec: DrafterSpec) -> Registry:
    from kinfolk import hookimpl
    from kinfolk.hookspecs import API

    @hookimpl
    def register_drafters() -> list[DrafterSpec]:
        return [spec]

    module.KINFOLK_API = API
    module.register_drafters = register_drafters
    family = importlib.import_module("kinfolk_qwen35.plugin")
    return Registry.build({"drafter-demo": module, "qwen35": family})
