"""The policy, asked as a loaded model asks it."""

from __future__ import annotations

from kinfolk_pinned_demo.pinned import Pinned

from kinfolk.experts.placement import DefaultPlacement
from kinfolk.hooks import HookProvider, ModelHookCaller
from kinfolk.plans import ExpertStats
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

STATS = ExpertStats((4, 0, 4), ((9, 1, 8, 1), (), (7, 6, 1, 1)), (10, 0, 30))


def asked(policies):
    family = HookProvider("family 'f'", DefaultPlacement())
    caller = ModelHookCaller(family, [], policies)
    return caller.place_experts(STATS, 75)


def test_the_usual_experts_are_placed_and_every_bay_is_pinned():
    pinned = asked([HookProvider("policy 'pinned'", Pinned())])
    assert pinned.bays == asked([]).bays
    assert pinned.bays == ((0, 1, 2, 3), (), (0,))
    assert pinned.pinned == (4, 0, 1)
    assert asked([]).pinned == ()


def test_the_policy_is_found_when_the_package_is_installed():
    registry = Registry.discover(load_settings())
    assert registry.policy("pinned").source.startswith("plugin 'pinned-demo'")
