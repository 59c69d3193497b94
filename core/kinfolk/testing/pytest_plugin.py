"""The pytest plugin of the conformance kit. It is installed and enabled with kinfolk.

Its imports are light, as every pytest run beside an installed kinfolk loads it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kinfolk.testing.marks import EACH_TINY

if TYPE_CHECKING:
    from kinfolk.testing.drafter_kit import DrafterKit
    from kinfolk.testing.facts import Facts
    from kinfolk.testing.kit import Kit
    from kinfolk.testing.policy_kit import PolicyKit

# Before the modules are imported, so that their assertions show values.
pytest.register_assert_rewrite(
    "kinfolk.testing.checks", "kinfolk.testing.kit", "kinfolk.testing.drafter_kit"
)

Target = tuple[str, str] | None
"""(family, tiny model) that a drafter is checked with; ``None`` = what it states."""

MARK = "kinfolk_conformance"
"""Attribute of test classes that check what their ``family``, ``drafter`` or ``policy`` names."""


class Conformance:
    """The kits of a run, by name, and the checks that did not apply, with the reason."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kinfolk-conformance-")
        self._kits: dict[tuple[str, str], Kit] = {}
        self._facts: dict[tuple[str, str], Facts] = {}
        self._drafters: dict[tuple[str, Target], DrafterKit] = {}
        self._drafter_facts: dict[tuple[str, Target], Facts] = {}
        self._policies: dict[str, PolicyKit] = {}
        self._policy_facts: dict[str, Facts] = {}
        self._targets: dict[str, tuple[tuple[str, str], ...]] = {}
        self.not_applicable: list[tuple[str, str, str]] = []

    def kit(self, family: str, model: str = "") -> Kit:
        """The kit on a tiny model of a family, by default on its first."""
        from kinfolk.testing.kit import Kit

        if (family, model) not in self._kits:
            self._kits[family, model] = Kit(family, self._new_folder(), model=model)
        return self._kits[family, model]

    def drafter_kit(self, drafter: str, target: Target = None) -> DrafterKit:
        """The kit on a drafter, for the tiny model ``target`` instead of the one it states."""
        from kinfolk.testing.drafter_kit import DrafterKit

        if (drafter, target) not in self._drafters:
            kit = DrafterKit(drafter, self._new_folder(), target=target)
            self._drafters[drafter, target] = kit
        return self._drafters[drafter, target]

    def policy_kit(self, policy: str) -> PolicyKit:
        """The kit on a policy."""
        from kinfolk.testing.policy_kit import PolicyKit

        if policy not in self._policies:
            self._policies[policy] = PolicyKit(policy, self._new_folder())
        return self._policies[policy]

    def _new_folder(self) -> Path:
        kits = len(self._kits) + len(self._drafters) + len(self._policies)
        folder = Path(self._folder.name) / str(kits)
        folder.mkdir()
        return folder

    def facts(self, family: str, model: str = "") -> Facts:
        from kinfolk.testing.facts import facts_of

        if (family, model) not in self._facts:
            self._facts[family, model] = facts_of(self.kit(family, model))
        return self._facts[family, model]

    def drafter_facts(self, drafter: str, target: Target = None) -> Facts:
        from kinfolk.testing.facts import drafter_facts_of

        if (drafter, target) not in self._drafter_facts:
            facts = drafter_facts_of(self.drafter_kit(drafter, target))
            self._drafter_facts[drafter, target] = facts
        return self._drafter_facts[drafter, target]

    def policy_facts(self, policy: str) -> Facts:
        from kinfolk.testing.facts import policy_facts_of

        if policy not in self._policy_facts:
            self._policy_facts[policy] = policy_facts_of(self.policy_kit(policy))
        return self._policy_facts[policy]

    def targets(self, drafter: str) -> tuple[tuple[str, str], ...]:
        """The tiny models that a drafter is part of; empty if it raises, as :meth:`models`."""
        if drafter not in self._targets:
            try:
                self._targets[drafter] = self.drafter_kit(drafter).targets()
            except Exception:  # A drafter may raise any exception.
                self._targets[drafter] = ()
        return self._targets[drafter]

    def models(self, family: str) -> tuple[str, ...]:
        """Names of a family's tiny models; empty if they raise, which :meth:`facts` reports."""
        try:
            return self.kit(family).models
        except Exception:  # A family may raise any exception.
            return ()

    def close(self) -> None:
        self._folder.cleanup()


CONFORMANCE = pytest.StashKey[Conformance]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu: runs anywhere")
    config.addinivalue_line("markers", f"{EACH_TINY}: runs on every tiny model of the family")
    config.addinivalue_line("markers", "kinfolk_needs(fact, ...): needs of a conformance check")


def pytest_unconfigure(config: pytest.Config) -> None:
    if CONFORMANCE in config.stash:
        config.stash[CONFORMANCE].close()


def conformance_of(config: pytest.Config) -> Conformance:
    if CONFORMANCE not in config.stash:
        config.stash[CONFORMANCE] = Conformance()
    return config.stash[CONFORMANCE]


def family_of(cls: type | None) -> str | None:
    """The family that a test class checks, ``None`` for any other class."""
    return getattr(cls, "family", None) if hasattr(cls, MARK) else None


def drafter_of(cls: type | None) -> str | None:
    """The drafter that a test class checks, ``None`` for any other class."""
    return getattr(cls, "drafter", None) if hasattr(cls, MARK) else None


def policy_of(cls: type | None) -> str | None:
    """The policy that a test class checks, ``None`` for any other class."""
    return getattr(cls, "policy", None) if hasattr(cls, MARK) else None


def model_of(item: pytest.Item) -> str:
    """The tiny model that a check runs on, empty for the family's first."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return str(parameters.get("kinfolk_kit", ""))


def target_of(item: pytest.Item) -> Target:
    """The tiny model that a check of a drafter runs with, ``None`` for what the drafter states."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    target: Target = parameters.get("kinfolk_drafter")
    return target


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One check for each weight format, and for each tiny model if there are several; for a drafter
    that is part of its target's file, one for each tiny model that has it."""
    family, drafter = family_of(metafunc.cls), drafter_of(metafunc.cls)
    if drafter is not None:
        targets = conformance_of(metafunc.config).targets(drafter)
        if targets:
            names = [model for _, model in targets]
            metafunc.parametrize(
                "kinfolk_drafter", targets, ids=names, indirect=True, scope="class"
            )
    if family is None:
        return
    if "quant_format" in metafunc.fixturenames:
        from kinfolk.quant.formats import BUILTIN_FORMATS

        metafunc.parametrize("quant_format", [format_.name for format_ in BUILTIN_FORMATS])
    if metafunc.definition.get_closest_marker(EACH_TINY):
        models = conformance_of(metafunc.config).models(family)
        if len(models) > 1:
            metafunc.parametrize("kinfolk_kit", models, indirect=True, scope="class")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove checks that do not apply, and remember the reason."""
    kept, out = [], []
    for item in items:
        cls = getattr(item, "cls", None)
        family, drafter, policy = family_of(cls), drafter_of(cls), policy_of(cls)
        facts = None
        if family:
            facts = conformance_of(config).facts(family, model_of(item))
        elif drafter:
            facts = conformance_of(config).drafter_facts(drafter, target_of(item))
        elif policy:
            facts = conformance_of(config).policy_facts(policy)
        reason = facts.why_not(item) if facts else ""
        if reason:
            out.append(item)
            name = family or drafter or policy or ""
            conformance_of(config).not_applicable.append((name, item.name, reason))
        else:
            kept.append(item)
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A pytest-xdist worker sends its list of removed checks to the process that prints."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and CONFORMANCE in session.config.stash:
        output[MARK] = session.config.stash[CONFORMANCE].not_applicable


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = getattr(node, "workeroutput", {}).get(MARK, ())
    listed = conformance_of(node.config).not_applicable
    # Every worker has collected, and removed, the same checks.
    listed.extend(entry for each in told if (entry := tuple(each)) not in listed)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print which checks were removed."""
    if CONFORMANCE not in config.stash or not config.stash[CONFORMANCE].not_applicable:
        return
    terminalreporter.section("conformance checks that do not apply")
    for subject, name, reason in config.stash[CONFORMANCE].not_applicable:
        terminalreporter.write_line(f"{subject}: {name}: {reason}")


@pytest.fixture(scope="class")
def kinfolk_kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """The kit of the test class's family. torch uses one thread, as matrices are tiny."""
    model = getattr(request, "param", "")
    with one_thread():
        yield conformance_of(request.config).kit(str(family_of(request.cls)), model)


@pytest.fixture(scope="class")
def kinfolk_drafter(request: pytest.FixtureRequest) -> Iterator[DrafterKit]:
    """The kit of the test class's drafter."""
    with one_thread():
        target: Target = getattr(request, "param", None)
        yield conformance_of(request.config).drafter_kit(str(drafter_of(request.cls)), target)


@pytest.fixture(scope="class")
def kinfolk_policy(request: pytest.FixtureRequest) -> Iterator[PolicyKit]:
    """The kit of the test class's policy."""
    with one_thread():
        yield conformance_of(request.config).policy_kit(str(policy_of(request.cls)))


@contextmanager
def one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
