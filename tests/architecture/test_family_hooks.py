"""The hooks of our families are called: their hooks object is in the manager of their model."""

from __future__ import annotations

import pytest

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.loading import load_model
from kinfolk.hookcheck import MODEL
from kinfolk.hooks import UNANSWERED
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

# Only models with experts are asked where to keep them.
EXPERTS_ONLY = {"place_experts", "swap_experts"}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())


def test_every_plugin_of_ours_is_usable(registry, families):
    assert registry.problems() == ()
    assert {record.name for record in registry.records} >= set(families)


def test_every_family_states_every_hook_and_is_asked(registry, cases, families):
    asked = set()
    # Third-party families may be installed in this environment, the examples' too.
    for name in registry.families.keys() & set(families):
        loaded = load_model(cases / f"{name}.gguf", load_settings(device="cpu"), registry)
        family = loaded.family.who
        for hook in set(MODEL) - EXPERTS_ONLY - UNANSWERED:
            assert family in loaded.hooks.asked(hook), f"{family} does not state {hook}"
        asked.add(name)
    assert asked == set(families)
