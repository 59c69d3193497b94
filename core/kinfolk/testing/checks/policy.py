"""Checks of a policy's registration and of its hooks, before a step is run."""

from __future__ import annotations

import sys

from kinfolk.hookcheck import problems
from kinfolk.hookspecs import API
from kinfolk.testing.checks.contract import heavy_imports
from kinfolk.testing.policy_kit import PolicyKit

_DISCOVER = """
import json, sys
sys.path[:] = {path!r}
from importlib import import_module
import_module({module!r}).register_policies()
print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


class PolicyChecks:
    """The plugin is found and loaded, and its policy is asked."""

    def test_policy_is_registered(self, kinfolk_policy: PolicyKit) -> None:
        """The plugin is usable, its module states the API version, and only it has this policy."""
        record = kinfolk_policy.record
        assert record.status == "ok", record.reason
        module = sys.modules[record.module]
        major, _ = module.KINFOLK_API
        assert major == API[0]
        names = [spec.name for spec in module.register_policies()]
        assert names.count(kinfolk_policy.name) == 1

    def test_discovery_loads_nothing_heavy(self, kinfolk_policy: PolicyKit) -> None:
        """Importing the plugin imports neither torch nor other heavy packages."""
        module = kinfolk_policy.record.module
        heavy = heavy_imports(_DISCOVER.format(path=sys.path, module=module), kinfolk_policy.folder)
        assert not heavy, f"{module} imports {', '.join(heavy)} at discovery"

    def test_policy_answers_a_hook(self, kinfolk_policy: PolicyKit) -> None:
        """The policy has at least one model hook, each with the signature of its specification, and
        is asked for a loaded model."""
        assert problems(kinfolk_policy.provider().hooks) == ()
        assert kinfolk_policy.answered, "the policy implements no model hook"
        who = kinfolk_policy.provider().label
        for hook in kinfolk_policy.answered:
            assert who in kinfolk_policy.loaded.hooks.asked(hook)

    def test_each_model_has_a_policy_of_its_own(self, kinfolk_policy: PolicyKit) -> None:
        """``create`` returns a new object for every loaded model."""
        first, second = (kinfolk_policy.provider().hooks for _ in range(2))
        assert first is not second
