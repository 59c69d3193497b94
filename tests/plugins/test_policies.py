"""Policies: enabled by name, created for one model, refused when they cannot work."""

import sys
from types import SimpleNamespace

import pytest

from kinfolk import hookimpl
from kinfolk.descriptors import PolicySpec
from kinfolk.errors import KinfolkError, PluginError, SettingsError
from kinfolk.hooks import HookProvider, ModelHookCaller, family_provider, policy_providers
from kinfolk.registry import Registry
from kinfolk.settings import load_settings


class Plain:
    def __init__(self, info):
        self.info = info

    @hookimpl
    def verify(self, step):
        return None


@pytest.fixture
def policy_of(plugin, monkeypatch):
    """``policy_of(create)`` -> a registry with policy "mine", which is made by ``create``."""

    def make(create, name="mine"):
        module = plugin("@hookimpl\ndef register_policies(): return [SPEC]")
        module.SPEC = PolicySpec(name, f"{module.__name__}:create")
        module.create = create
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return Registry.build({"brings": module})

    return make


def test_a_policy_is_created_anew_for_each_model_and_told_about_it(policy_of, info):
    registry = policy_of(Plain)
    (one,) = policy_providers(registry, ("mine",), info)
    (two,) = policy_providers(registry, ("mine",), info)
    assert one.hooks is not two.hooks
    assert one.hooks.info is info
    assert one.label == "policy 'mine' of plugin 'brings'"


def test_policies_keep_the_order_of_the_command_line(plugin, info, monkeypatch):
    module = plugin("@hookimpl\ndef register_policies(): return SPECS")
    module.SPECS = [PolicySpec(name, f"{module.__name__}:create") for name in ("a", "b", "c")]
    module.create = Plain
    monkeypatch.setitem(sys.modules, module.__name__, module)
    registry = Registry.build({"brings": module})
    names = load_settings(policy="c, a").policy
    labels = [provider.label for provider in policy_providers(registry, names, info)]
    assert labels == ["policy 'c' of plugin 'brings'", "policy 'a' of plugin 'brings'"]


def test_an_unknown_policy_is_an_error_that_lists_the_names(policy_of, info):
    with pytest.raises(SettingsError) as caught:
        policy_providers(policy_of(Plain), ("mien",), info)
    assert str(caught.value) == (
        "--policy mien: no such policy; installed: 'mine' (plugin 'brings')"
    )


def broken(hook):
    return type("Broken", (), {hook.__name__: hook})()


def misspelt():
    @hookimpl
    def verfy(self, step): ...

    return broken(verfy)


def wrong_signature():
    @hookimpl
    def verify(self, steps): ...

    return broken(verify)


def discovery_hook():
    @hookimpl
    def register_families(self): ...

    return broken(register_families)


def unmarked():
    def verify(self, step): ...

    return broken(verify)


def pushy():
    @hookimpl(tryfirst=True)
    def verify(self, step): ...

    return broken(verify)


def lazy_wrapper():
    @hookimpl(wrapper=True)
    def verify(self, step): ...

    return broken(verify)


def old_wrapper():
    @hookimpl(hookwrapper=True)
    def verify(self, step):
        yield

    return broken(verify)


def coroutine():
    @hookimpl
    async def verify(self, step): ...

    return broken(verify)


def generator():
    @hookimpl
    def verify(self, step):
        yield

    return broken(verify)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (misspelt, "there is no hook verfy; did you mean verify?"),
        (
            wrong_signature,
            "verify(step, draft, sampling) has no argument 'steps'; did you mean 'step'?",
        ),
        (discovery_hook, "register_families is a discovery hook; put it in the plugin's module"),
        (unmarked, "verify has the name of a hook but is not marked with @hookimpl"),
        (pushy, "verify uses tryfirst or trylast; the order of plugins is the host's to decide"),
        (lazy_wrapper, "verify is marked as a wrapper but never yields"),
        (old_wrapper, "verify uses hookwrapper=True; write it with wrapper=True"),
        (coroutine, "verify is async"),
        (generator, "verify is a generator"),
    ],
)
def test_a_policy_whose_hooks_cannot_work_is_refused(policy_of, info, make, words):
    with pytest.raises(PluginError) as caught:
        policy_providers(policy_of(lambda info: make()), ("mine",), info)
    assert str(caught.value).startswith("policy 'mine' of plugin 'brings': ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "None"), (sys, "an object of type module"), (Plain, "the class Plain")],
    ids=["nothing", "module", "class"],
)
def test_a_policy_must_give_an_object_of_its_own(policy_of, info, value, shown):
    with pytest.raises(PluginError) as caught:
        policy_providers(policy_of(lambda info: value), ("mine",), info)
    assert f"returned {shown}; it must return a new object with @hookimpl methods" in str(
        caught.value
    )


def test_a_policy_that_fails_to_start_is_reported_without_a_traceback(policy_of, info):
    def create(info):
        raise ValueError("no scorer file")

    with pytest.raises(PluginError, match=r"policy 'mine' of plugin 'brings': .*no scorer file"):
        policy_providers(policy_of(create), ("mine",), info)


@pytest.mark.parametrize("reference", ["no_such_module:f", "kinfolk.hooks:no_such_name"])
def test_a_reference_that_leads_nowhere_is_reported(plugin, info, reference):
    module = plugin(
        f"@hookimpl\ndef register_policies(): return [PolicySpec('mine', {reference!r})]"
    )
    with pytest.raises(PluginError, match=reference.replace(".", r"\.")):
        policy_providers(Registry.build({"brings": module}), ("mine",), info)


def test_an_error_that_already_explains_itself_passes(policy_of, info):
    def create(info):
        raise SettingsError("frugal needs --context")

    with pytest.raises(KinfolkError, match=r"^frugal needs --context$"):
        policy_providers(policy_of(create), ("mine",), info)


def test_a_family_whose_hooks_cannot_work_is_refused(family_class):
    class Family(family_class):
        def hooks(self, config):
            return misspelt()

    with pytest.raises(PluginError, match="family 'sound': there is no hook verfy; did you mean"):
        family_provider(Family(), None)


def test_a_family_that_gives_a_module_of_hooks_is_refused(family_class):
    """A module would be one object for all models."""

    class Family(family_class):
        def hooks(self, config):
            return sys

    with pytest.raises(PluginError, match=r"Family\.hooks returned an object of type module"):
        family_provider(Family(), None)


def test_a_third_partys_family_and_policy_work_together(toy_site, monkeypatch, info, limits):
    monkeypatch.syspath_prepend(str(toy_site))
    for name in [name for name in sys.modules if name.split(".")[0] == "kinfolk_toy"]:
        monkeypatch.delitem(sys.modules, name)
    registry = Registry.discover(load_settings(plugins=("toy",)))
    family = registry.family_for("toy")
    config = SimpleNamespace(layers=1)
    caller = ModelHookCaller(family_provider(family, {"layers": 1}))
    plan = caller.allocate_cache(config, limits)
    assert plan.windows == (None,)
    caller = caller.with_policies(policy_providers(registry, ("frugal",), info))
    assert caller.allocate_cache(config, limits).windows == (info.context // 2,)
    assert caller.asked("allocate_cache") == (
        "policy 'frugal' of plugin 'toy' (kinfolk-toy 1.2)",
        "family 'toy' of plugin 'toy' (kinfolk-toy 1.2)",
    )


def test_a_party_is_itself_and_not_its_fields():
    hooks = object()
    assert HookProvider("a", hooks) != HookProvider("a", hooks)
