"""Source files for the architecture tests: parsed once, named from the root of the repository."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Source:
    """One module: its path from the root of the repository, its dotted name, text and tree."""

    path: str
    module: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """`kinfolk`, `kinfolk_kernels` or `kinfolk_<family>`."""
        return self.module.split(".")[0]

    def imports(self) -> Iterator[tuple[str, int]]:
        """Every imported module with its line, also inside functions and for typing only."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: relative import"
                for alias in node.names:
                    # "from kinfolk import errors" names a module, "from kinfolk.errors import X"
                    # a member of one; the longer name is kept where it is a module of ours.
                    yield f"{node.module}.{alias.name}", node.lineno


def read(repo: Path, root: str, package: str) -> list[Source]:
    found = []
    for path in sorted((repo / root / package).rglob("*.py")):
        parts = path.relative_to(repo / root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        found.append(Source(str(path.relative_to(repo)), module, text, ast.parse(text)))
    assert found, f"no module under {root}/{package}"
    return found


@pytest.fixture(scope="session")
def families(repo: Path) -> list[str]:
    return sorted(path.parent.name for path in (repo / "plugins").glob("*/pyproject.toml"))


@pytest.fixture(scope="session")
def core(repo: Path) -> list[Source]:
    return read(repo, "core", "kinfolk")


@pytest.fixture(scope="session")
def kernels(repo: Path) -> list[Source]:
    return read(repo, "kernels", "kinfolk_kernels")


@pytest.fixture(scope="session")
def plugins(repo: Path, families: list[str]) -> list[Source]:
    return [s for name in families for s in read(repo, f"plugins/{name}", f"kinfolk_{name}")]


@pytest.fixture(scope="session")
def library(core, kernels, plugins) -> list[Source]:
    """All modules that are installed."""
    return [*core, *kernels, *plugins]
