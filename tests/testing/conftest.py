"""A family as `kinfolk new-family` writes it, valid or with one error."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kinfolk.descriptors import Family
from kinfolk.registry import Registry
from kinfolk.scaffold.write import NewFamily, write_family
from kinfolk.testing.kit import Kit

NAME = "olive"


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
