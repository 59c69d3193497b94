"""Tiers, hypothesis profiles and the fixtures that every folder shares.

A test belongs to exactly one tier; without a marker of its own it is `cpu`. A tier that cannot run
as asked is an error, never a skip: what was selected runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

REPO = Path(__file__).resolve().parents[1]
TIERS = ("cpu", "interpreter", "gpu", "packaging", "browser")

# Triton decides at its own import whether kernels are interpreted, for library functions too, so
# only the value that the process was started with counts.
INTERPRET_AT_START = os.environ.get("TRITON_INTERPRET")
PROBLEM = pytest.StashKey[str]()

hypothesis.settings.register_profile("dev", max_examples=25, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_configure() -> None:
    """Tests choose their settings and plugins themselves, whatever this machine is used for.

    What this run was told is not meant for the pytest that a test may start. Of installed plugins
    there are those of this repository, and those that a test makes and names.
    """
    os.environ.pop("PYTEST_ADDOPTS", None)
    for name in [name for name in os.environ if name.upper().startswith("KINFOLK_")]:
        del os.environ[name]
    ours = sorted(path.parent.name for path in (REPO / "plugins").glob("*/pyproject.toml"))
    os.environ["KINFOLK_PLUGINS"] = ",".join(ours)


# -- tiers ----------------------------------------------------------------------------------------


def tiers_of(item: pytest.Item) -> list[str]:
    return [tier for tier in TIERS if item.get_closest_marker(tier) is not None]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its tier before -m looks at it."""
    for item in items:
        if not tiers_of(item):
            item.add_marker(pytest.mark.cpu)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a selection that this process cannot run as meant."""
    if session.config.option.collectonly:
        return
    problem = problem_of(session.items)
    if problem and hasattr(session.config, "workerinput"):
        # A worker of pytest-xdist that stops here takes the controller down without a word.
        session.config.stash[PROBLEM] = problem
    elif problem:
        raise pytest.UsageError(problem)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if PROBLEM in item.config.stash:
        pytest.fail(item.config.stash[PROBLEM], pytrace=False)


def problem_of(items: Iterable[pytest.Item]) -> str | None:
    """Why the selected tests cannot run in this process, or None."""
    selected = set()
    for item in items:
        tiers = tiers_of(item)
        if len(tiers) > 1:
            return f"{item.nodeid} is in several tiers: {', '.join(tiers)}"
        selected.update(tiers)
    if os.environ.get("TRITON_INTERPRET") != INTERPRET_AT_START:
        return "TRITON_INTERPRET was changed inside the process; set it before pytest starts"
    interpreted = INTERPRET_AT_START == "1"
    if "interpreter" in selected and not interpreted:
        return "the interpreter tier needs TRITON_INTERPRET=1 in the environment of pytest"
    if interpreted and selected - {"interpreter"}:
        others = ", ".join(sorted(selected - {"interpreter"}))
        return f"TRITON_INTERPRET=1 is set, but tests of other tiers are selected: {others}"
    if "gpu" in selected and not cuda_present():
        return "the gpu tier was selected, and torch sees no CUDA device"
    return None


def cuda_present() -> bool:
    import torch

    return torch.cuda.is_available()


# -- fixtures -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return REPO


@pytest.fixture(scope="session")
def cases() -> Path:
    """Folder of the reference cases: `<family>.gguf` with its `<family>.npz` of ids and logits."""
    return REPO / "tests" / "data" / "cases"


@pytest.fixture(scope="session")
def wrapped_ops() -> Callable[..., AbstractContextManager[None]]:
    """``with wrapped_ops(op=wrap):`` inside, binding the op gives ``wrap(arguments, run)``, where
    ``run(*operands)`` is what it gives otherwise."""

    @contextmanager
    def wrapped(**wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
        from kinfolk.ops.table import Ops

        bind = Ops.bind

        def bound(self: Ops, op: Any, arguments: Any) -> Callable[..., Any]:
            run = bind(self, op, arguments)
            return wrap[op.name](arguments, run) if op.name in wrap else run

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ops, "bind", bound)
            yield

    return wrapped


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that starts equal in every test."""
    return np.random.default_rng(0)
