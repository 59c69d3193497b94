"""Checks of the descriptor, the entry point and the hooks, before a model is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from kinfolk.descriptors import family_problem
from kinfolk.hookcheck import MODEL, implementations, problems
from kinfolk.hookspecs import API
from kinfolk.loader import GROUP
from kinfolk.testing.kit import Kit
from kinfolk.testing.marks import needs

HEAVY = ("torch", "triton", "transformers", "tokenizers", "gguf", "safetensors")

_DISCOVER = """
import json, sys
sys.path[:] = {path!r}
from importlib import import_module
from kinfolk.gguf.metadata import Metadata
for family in import_module({module!r}).register_families():
    family.chat(Metadata.from_dict({{"general.architecture": "none"}}))
    family.pretokenizers(), family.model_cards(), family.bundled_model()
print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


class ContractChecks:
    """The plugin is found and loaded, and its hooks are asked."""

    def test_descriptor_is_valid(self, kinfolk_kit: Kit) -> None:
        """The plugin is usable, its descriptor complete, and only it claims its architectures."""
        assert kinfolk_kit.record.status == "ok", kinfolk_kit.record.reason
        assert family_problem(kinfolk_kit.family.family) == ""
        assert kinfolk_kit.family.faults() == ()
        assert kinfolk_kit.family.name == kinfolk_kit.name
        for architecture in kinfolk_kit.family.architectures:
            # Raises if another installed family claims it too.
            assert kinfolk_kit.registry.family_for(architecture) is kinfolk_kit.family

    def test_entry_point_registers_the_family(self, kinfolk_kit: Kit) -> None:
        """An installed distribution has the entry point, and its module states the API version."""
        record = kinfolk_kit.record
        assert record.distribution, "the plugin comes from no installed distribution"
        for name in record.distribution.split(", "):
            points = metadata.distribution(name).entry_points.select(group=GROUP, name=record.name)
            assert [point.value for point in points] == [record.module]
        module = sys.modules[record.module]
        major, _ = module.KINFOLK_API
        assert major == API[0]
        assert kinfolk_kit.name in {family.name for family in module.register_families()}

    def test_discovery_loads_nothing_heavy(self, kinfolk_kit: Kit) -> None:
        """Importing and querying the plugin imports neither torch nor other heavy packages."""
        code = _DISCOVER.format(path=sys.path, module=kinfolk_kit.record.module)
        heavy = heavy_imports(code, kinfolk_kit.folder)
        assert not heavy, f"{kinfolk_kit.record.module} imports {', '.join(heavy)} at discovery"

    @needs("tiny")
    def test_hooks_are_sound_and_asked(self, kinfolk_kit: Kit) -> None:
        """Every hook has the signature of its specification and is asked for the loaded model."""
        hooks = kinfolk_kit.family.hooks(kinfolk_kit.config)
        assert problems(hooks) == ()
        stated = {
            implementation.hook
            for implementation in implementations(hooks)
            if implementation.hook in MODEL
        }
        assert "allocate_cache" in stated
        for hook in stated:
            assert kinfolk_kit.family.who in kinfolk_kit.loaded.hooks.asked(hook)

    @needs("tiny")
    def test_each_model_has_hooks_of_its_own(self, kinfolk_kit: Kit) -> None:
        """``hooks`` returns a new object for every loaded model."""
        first, second = (kinfolk_kit.family.hooks(kinfolk_kit.config) for _ in range(2))
        assert first is not second


def heavy_imports(code: str, folder: Path) -> list[str]:
    """Heavy packages that are imported by a program, run in ``folder``, which prints a JSON list of
    all that it imported."""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return sorted(set(json.loads(ran.stdout.splitlines()[-1])).intersection(HEAVY))
