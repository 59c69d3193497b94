"""Checks of a drafter's registration and of its file, before anything is drafted."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

from kinfolk.draft_api import DraftPlan
from kinfolk.errors import KinfolkError, PluginError
from kinfolk.gguf.file import GGUFFile
from kinfolk.hookspecs import API
from kinfolk.testing.checks.contract import heavy_imports
from kinfolk.testing.drafter_kit import DrafterKit
from kinfolk.testing.marks import needs
from kinfolk.testing.model_files import rewrite

_DISCOVER = """
import json, sys
sys.path[:] = {path!r}
from importlib import import_module
from kinfolk.descriptors import resolve
for spec in import_module({module!r}).register_drafters():
    if spec.prepare:
        resolve(spec.prepare)
print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


class DrafterFileChecks:
    """The plugin is found and loaded, and its files are read or refused by name."""

    def test_drafter_is_registered(self, kinfolk_drafter: DrafterKit) -> None:
        """The plugin is usable, its module states the API version, and only it has this drafter."""
        record = kinfolk_drafter.record
        assert record.status == "ok", record.reason
        module = sys.modules[record.module]
        major, _ = module.KINFOLK_API
        assert major == API[0]
        names = [spec.name for spec in module.register_drafters()]
        assert names.count(kinfolk_drafter.name) == 1

    def test_discovery_loads_nothing_heavy(self, kinfolk_drafter: DrafterKit) -> None:
        """Importing the plugin and its ``prepare`` imports neither torch nor other heavy
        packages."""
        module = kinfolk_drafter.record.module
        code = _DISCOVER.format(path=sys.path, module=module)
        heavy = heavy_imports(code, kinfolk_drafter.folder)
        assert not heavy, f"{module} imports {', '.join(heavy)} at discovery"

    def test_tiny_drafter_is_usable(self, kinfolk_drafter: DrafterKit) -> None:
        """The tiny drafter is written, planned and built for a tiny target."""
        if not kinfolk_drafter.spec.has_weights:
            assert callable(kinfolk_drafter.host().propose)
            return
        assert kinfolk_drafter.tiny.write or not kinfolk_drafter.spec.architectures, (
            "the drafter has files of its own, so its TinyDrafter must state write"
        )
        if kinfolk_drafter.own_file:
            architecture = kinfolk_drafter.file.metadata.architecture
            assert kinfolk_drafter.spec.reads(architecture), (
                f"its file is of architecture {architecture!r}, which its spec does not list"
            )
        assert kinfolk_drafter.loaded.drafter is not None

    @needs("file")
    def test_every_tensor_is_used_once(self, kinfolk_drafter: DrafterKit) -> None:
        """The plan uses every tensor of the drafter's file, or ignores it with a reason."""
        plan = kinfolk_drafter.plan.weights
        twice = [name for name, count in Counter(spec.name for spec in plan).items() if count > 1]
        assert not twice, f"weights with the same name: {twice}"
        used = {spec.tensor for spec in plan}
        assert all(plan.ignored.values()), "tensors that are ignored without a reason"
        left = set(kinfolk_drafter.file.inventory) - used - set(plan.ignored)
        assert not left, f"tensors that the plan does not know: {sorted(left)}"

    @needs("file")
    def test_missing_keys_are_named(self, kinfolk_drafter: DrafterKit) -> None:
        """A missing required key of its architecture is an error that names the key."""
        meta = kinfolk_drafter.file.metadata
        own = [key for key in meta if key.startswith(meta.arch_key(""))]
        refused = [key for key in own if plan_without(kinfolk_drafter, key) is None]
        assert refused, "no key of the architecture is required"

    @needs("file")
    def test_missing_tensors_are_named(self, kinfolk_drafter: DrafterKit) -> None:
        """Without a tensor, the file is refused with an error that names it, or it is asked for
        when weights are loaded."""
        for name in kinfolk_drafter.file.inventory:
            plan = plan_without(kinfolk_drafter, name)
            assert plan is None or name in {spec.tensor for spec in plan.weights}, (
                f"the plan does without {name!r}"
            )

    @needs("file")
    def test_a_model_is_no_drafter(self, kinfolk_drafter: DrafterKit) -> None:
        """The target's own file is refused by an error of the project, or holds no drafter."""
        try:
            plan = kinfolk_drafter.prepare(kinfolk_drafter.target.file)
        except KinfolkError:
            return
        assert plan is None, "prepare takes the target's own file for a drafter"

    @needs("features", "file")
    def test_targets_of_another_width_are_refused(self, kinfolk_drafter: DrafterKit) -> None:
        """A target whose rows have another width is refused: the plan states the width that the
        weights are made for."""
        facts = kinfolk_drafter.facts
        other = facts.config.width + 64
        config = facts.config.model_copy(update={"width": other})
        try:
            plan = kinfolk_drafter.prepare(kinfolk_drafter.file, replace(facts, config=config))
        except KinfolkError:
            return
        assert plan is None or plan.width not in (None, other), (
            f"a target with rows of {other} numbers is accepted by a drafter that reads rows of "
            f"{facts.config.width}"
        )


def plan_without(kit: DrafterKit, name: str) -> DraftPlan | None:
    """The plan for the drafter's file without a key or tensor, ``None`` if it is refused with an
    error that names what is missing."""
    path = rewrite(kit.file, kit.folder / "without.gguf", without=(name,))
    with GGUFFile.open(path) as file:
        try:
            return kit.prepare(file)
        except KinfolkError as error:
            if name in str(error) and not isinstance(error, PluginError):
                return None
            raise AssertionError(f"without {name!r}, the error is no refusal: {error}") from error
