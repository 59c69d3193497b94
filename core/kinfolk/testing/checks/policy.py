"""Checks of a policy's registration, and of hooks that are no scores."""

from __future__ import annotations

import sys

from kinfolk.engine.runtime import Runtime
from kinfolk.hookcheck import problems
from kinfolk.hookspecs import API
from kinfolk.testing.checks.contract import heavy_imports
from kinfolk.testing.checks.engine import answers
from kinfolk.testing.marks import needs
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

    @needs("verify")
    def test_drafted_requests_end_well(self, kinfolk_policy: PolicyKit) -> None:
        """Requests with drafts, several at once, get all tokens that they asked for: ``verify``
        answers in every step, and with rows of that step."""
        tokens = kinfolk_policy.model.tokens
        # With three tokens, pairs must repeat, so that prompt lookup drafts.
        few = tuple(tokens[:3])
        settings = kinfolk_policy.settings(draft="ngram", draft_widths="fixed", draft_tokens=6)
        opened = kinfolk_policy.model.path, settings, kinfolk_policy.registry
        with Runtime.open(*opened) as runtime:
            ended = answers(runtime, [tokens[:8] * 9, tokens[:70]], few)
        assert sum(end.usage.drafted for _, end in ended) > 0, "nothing was drafted"
