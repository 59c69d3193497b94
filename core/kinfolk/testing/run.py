"""Runs the conformance kit on an installed family, drafter or policy, outside of any test suite."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from kinfolk.errors import PluginError, SettingsError

if TYPE_CHECKING:
    import pytest

Status = Literal["passed", "failed", "not applicable"]

_PLUGIN: Final = "kinfolk.testing.pytest_plugin"
_NEEDED: Final = ("pytest", "hypothesis")
_OPTIONS: Final = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")
_MODULE: Final = """from kinfolk.testing import {checks}


class TestPlugin({checks}):
    {kind} = {name!r}
"""
_CHECKS: Final = {
    "family": "FamilyConformance",
    "drafter": "DrafterConformance",
    "policy": "PolicyConformance",
}

Subject = Literal["family", "drafter", "policy"]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check. ``detail`` says why it failed or does not apply; ``trace`` is the
    whole report of a failure."""

    check: str
    title: str
    status: Status
    detail: str = ""
    trace: str = field(default="", repr=False)


_NO_REASON: Final = ("For further information visit", "Use -v to get")
"""Beginnings of the last lines of messages from pydantic and pytest."""

OnResult = Callable[[Result], None]


def run_checks(
    name: str,
    *,
    kind: Subject = "family",
    select: str = "",
    on_result: OnResult | None = None,
) -> tuple[Result, ...]:
    """Run the checks of the family, drafter or policy called ``name``: those whose names match the
    pytest expression ``select`` if it is given.

    ``on_result`` is called with each result as its check ends. Raises :class:`SettingsError` if the
    tools are not installed or no check matches, and :class:`PluginError` if pytest cannot run.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"the checks need {' and '.join(missing)}, which is not installed; "
            "install the extra: pip install 'kinfolk[testing]'"
        )
    import pytest

    recorder = _Recorder(_CHECKS[kind], on_result or (lambda result: None))
    said = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="kinfolk-check-") as folder:
        module, config = Path(folder, "test_plugin.py"), Path(folder, "pytest.ini")
        text = _MODULE.format(checks=_CHECKS[kind], kind=kind, name=name)
        module.write_text(text, encoding="utf-8")
        # A configuration of its own: that of the current folder is for other tests.
        config.write_text("[pytest]\n", encoding="utf-8")
        options = [f"--rootdir={folder}", "-c", str(config), "--import-mode=importlib"]
        # Other plugins are for other tests, and finding them takes a second.
        options += ["--disable-plugin-autoload", "-p", _PLUGIN, "-p", "no:cacheprovider"]
        options += ["-o", "addopts=", "-q", "-s", "-k", select]
        with (
            contextlib.redirect_stdout(said),
            _unlogged(),
            _examples_in(Path(folder)),
            pytest.MonkeyPatch.context() as environment,
        ):
            for option in _OPTIONS:  # such as a number of processes; they are for other tests
                environment.delenv(option, raising=False)
            code = pytest.main([*options, str(module)], plugins=[recorder])
    if recorder.failure is not None:
        raise recorder.failure
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    # What pytest also says if all that were selected do not apply.
    none = code == pytest.ExitCode.NO_TESTS_COLLECTED
    if none and not recorder.results:
        raise SettingsError(f"no check matches {select!r}")
    if not none and code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise PluginError(f"the checks of {name!r} could not be run: {said.getvalue().strip()}")
    return tuple(recorder.results)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Log nothing: checks provoke warnings and assert on them."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers


@contextlib.contextmanager
def _examples_in(folder: Path) -> Iterator[None]:
    """Let hypothesis keep its examples in ``folder``, not in the current folder."""
    from hypothesis.configuration import set_hypothesis_home_dir

    set_hypothesis_home_dir(folder / "hypothesis")
    try:
        yield
    finally:
        set_hypothesis_home_dir(None)


class _Recorder:
    """Pytest plugin that passes the result of each check to ``on_result``."""

    def __init__(self, checks: str, on_result: OnResult) -> None:
        self.results: list[Result] = []
        self._checks = checks
        self._on_result = on_result
        self._stdout = sys.stdout
        self._titles: dict[str, str] = {}
        self.failure: Exception | None = None
        """The exception that ``on_result`` raised; it ends the run."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from kinfolk.testing import conformance
        from kinfolk.testing.pytest_plugin import conformance_of

        checks: type = getattr(conformance, self._checks)
        self._titles = {item.nodeid: title_of(checks, item.name) for item in session.items}
        for _, name, reason in conformance_of(session.config).not_applicable:
            title = title_of(checks, name)
            self._add(Result(name, title, "not applicable", reason))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        name = report.nodeid.rpartition("::")[2]
        title = self._titles[report.nodeid]
        if report.passed:
            self._add(Result(name, title, "passed"))
        else:
            self._add(Result(name, title, "failed", reason_of(report), report.longreprtext))

    def _add(self, result: Result) -> None:
        self.results.append(result)
        import pytest

        try:
            with contextlib.redirect_stdout(self._stdout):
                self._on_result(result)
        except Exception as error:
            self.failure = error
            pytest.exit("on_result raised an exception")


def title_of(checks: type, name: str) -> str:
    """The first sentence of a check's docstring."""
    function = getattr(checks, name.partition("[")[0])
    text = " ".join((inspect.getdoc(function) or name).split())
    return text.split(". ")[0].removesuffix(".")


def reason_of(report: pytest.TestReport) -> str:
    """A failure on one line: the first line of its message and the last, which names the error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_NO_REASON)]
    if not lines:
        return "failed"
    first = lines[0].removeprefix("AssertionError: ")
    return first if len(lines) == 1 else f"{first} … {lines[-1]}"
