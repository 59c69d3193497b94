"""Tiers, hypothesis profiles and the fixtures that every folder shares.

A test belongs to exactly one tier; without a marker of its own it is `cpu`. A tier that cannot run
as asked is an error, never a skip: what was selected runs.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Set before torch is imported, here and in programs that tests start. Tests run in one process for
# each core, and for tiny matrices waking threads takes longer than they save. Threads that a test
# asks for must not spin on the cores of other processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import numpy as np
import pytest

pytest.register_assert_rewrite(
    *("dflash_bench", "dflash_configs", "drafter_scenes", "executor_scenes", "kernel_inputs"),
    *("mtp_bench", "shares", "talk", "toy_world", "wire_scenes"),
)

if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
    import quick_interpreter

    quick_interpreter.install()

REPO = Path(__file__).resolve().parents[1]
TIERS = ("cpu", "long", "interpreter", "gpu", "packaging", "browser")

# Triton decides at its own import whether kernels are interpreted, for library functions too, so
# only the value that the process was started with counts.
INTERPRET_AT_START = os.environ.get("TRITON_INTERPRET")
PROBLEM = pytest.StashKey[str]()
MAX_WORKERS = 8
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

hypothesis.settings.register_profile("dev", max_examples=25, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
hypothesis.settings.register_profile("long", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
)


def pytest_configure(config: pytest.Config) -> None:
    """Isolate tests from this machine's settings and plugins.

    ``PYTEST_ADDOPTS`` must not reach the pytest that a test may start. Of the installed plugins
    only those of this repository are visible, and those that a test creates and names.
    """
    os.environ.pop("PYTEST_ADDOPTS", None)
    for name in [name for name in os.environ if name.upper().startswith(("KINFOLK_", "DFLASH_"))]:
        del os.environ[name]
    ours = sorted(path.parent.name for path in (REPO / "plugins").glob("*/pyproject.toml"))
    os.environ["KINFOLK_PLUGINS"] = ",".join(ours)
    if config.option.markexpr in TIERS and not config.option.collectonly:
        # Checked before workers start, which could only fail test by test.
        problem = problem_of({config.option.markexpr})
        if problem:
            raise pytest.UsageError(problem)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto`: one worker for each core, or none if a single file is named.

    A worker loads torch (half a gigabyte) and has session fixtures of its own, so there are at most
    eight.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    if len(config.args) == 1 and ".py" in config.args[0]:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MAX_WORKERS)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and tests, which stay to the end, out of the garbage collector's full runs."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries tell at the end what was never collected."""
    gc.unfreeze()


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
    problem = next(filter(None, map(two_tiers_of, session.items)), None) or problem_of(
        {tier for item in session.items for tier in tiers_of(item)}
    )
    if problem and hasattr(session.config, "workerinput"):
        # A pytest-xdist worker that stops here would stop the controller without a message.
        session.config.stash[PROBLEM] = problem
    elif problem:
        raise pytest.UsageError(problem)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if PROBLEM in item.config.stash:
        pytest.fail(item.config.stash[PROBLEM], pytrace=False)


def two_tiers_of(item: pytest.Item) -> str | None:
    tiers = tiers_of(item)
    return f"{item.nodeid} is in several tiers: {', '.join(tiers)}" if len(tiers) > 1 else None


def problem_of(selected: Set[str]) -> str | None:
    """Why the tests of these tiers cannot run in this process, or None."""
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
    if "browser" in selected and find_browser() is None:
        return f"the browser tier was selected, and none is on PATH: {', '.join(BROWSERS)}"
    return None


def cuda_present() -> bool:
    import torch

    return torch.cuda.is_available()


def find_browser() -> str | None:
    """A Chromium of this machine."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


# -- fixtures -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return REPO


@pytest.fixture(scope="session")
def browser_path() -> str:
    """The browser of the tier with this name, which does not run without one."""
    path = find_browser()
    assert path is not None
    return path


@pytest.fixture(autouse=True)
def log_level_of_others() -> Iterator[None]:
    """A test may leave another level of the root logger, which changes what later ones see logged.
    Seen in whole runs only; the test that leaves it is not known."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


@pytest.fixture(scope="session")
def cases() -> Path:
    """Folder of the reference cases: `<family>.gguf` with its `<family>.npz` of ids and logits."""
    return REPO / "tests" / "data" / "cases"


@pytest.fixture(scope="session")
def wrapped_ops() -> Callable[..., AbstractContextManager[None]]:
    """``with wrapped_ops(op=wrap):`` makes binding the op return ``wrap(arguments, run)``, where
    ``run(*operands)`` is the function that binding returns otherwise."""

    @contextmanager
    def wrapped(**wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
        from kinfolk.ops.binding import Ops

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
    """A generator with the same seed in every test."""
    return np.random.default_rng(0)
