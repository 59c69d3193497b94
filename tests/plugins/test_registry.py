"""A registry is frozen, finds families by exact names, and refuses both sides of a name clash."""

import dataclasses

import pytest

from kinfolk.errors import (
    FamilyConflictError,
    PluginError,
    SettingsError,
    UnknownArchitectureError,
    UnsupportedModelError,
)
from kinfolk.registry import Registry, describe


@pytest.fixture
def of_families(plugin, family_class):
    """``of_families(a=[("name", ("arch",))])`` -> a registry of plugins with these families."""

    def make(**plugins):
        modules = {}
        for name, families in plugins.items():
            module = plugin("@hookimpl\ndef register_families(): return FAMILIES")
            module.FAMILIES = [family_class(*family) for family in families]
            modules[name] = module
        return Registry.build(modules)

    return make


@pytest.fixture
def of_source(plugin):
    """``of_source(a="...")`` -> a registry of plugins made from text."""

    def make(**sources):
        return Registry.build({name: plugin(source) for name, source in sources.items()})

    return make


DRAFTER = "@hookimpl\ndef register_drafters(): return [DrafterSpec({!r}, 'm:f')]\n"
POLICY = "@hookimpl\ndef register_policies(): return [PolicySpec({!r}, 'm:f')]\n"
FORMAT = "@hookimpl\ndef register_quant_formats(): return [QuantFormat({!r}, {}, 32, 18, 'm:f')]\n"
BACKEND = "@hookimpl\ndef register_op_backends(): return [OpBackend('route', {!r}, 'm:f')]\n"


# -- families -------------------------------------------------------------------------------------


def test_a_family_is_found_by_the_exact_architecture(of_families):
    registry = of_families(a=[("one", ("arch", "arch2"))], b=[("two", ("arch-b",))])
    assert registry.family_for("arch").name == "one"
    assert registry.family_for("arch2").name == "one"
    assert registry.family_for("arch-b").name == "two"


@pytest.mark.parametrize("near", ["arc", "arch3", "ARCH", " arch", ""])
def test_nothing_like_the_architecture_is_good_enough(of_families, near):
    registry = of_families(a=[("one", ("arch",))])
    with pytest.raises(UnknownArchitectureError):
        registry.family_for(near)


def test_an_unknown_architecture_lists_families_and_broken_plugins(plugin, family_class):
    good = plugin("@hookimpl\ndef register_families(): return [FAMILY]")
    good.FAMILY = family_class("one", ("arch", "arch2"))
    bad = plugin("", preamble="KINFOLK_API = (7, 0)\n")
    with pytest.raises(UnknownArchitectureError) as caught:
        Registry.build({"good": good, "bad": bad}).family_for("mystery")
    message = str(caught.value)
    assert "no installed family claims the architecture 'mystery'" in message
    assert "installed families: one (arch, arch2)" in message
    assert "plugin 'bad': needs plugin API 7.0" in message
    assert "'kinfolk new-family NAME'" in message
    assert "README.md" in message


def test_without_any_family_the_error_says_so():
    with pytest.raises(UnknownArchitectureError, match="installed families: none"):
        Registry.build({}).family_for("mystery")


def test_two_claims_are_an_error_that_names_both_and_the_way_out(of_families):
    registry = of_families(a=[("one", ("arch",))], b=[("two", ("arch",))])
    with pytest.raises(FamilyConflictError) as caught:
        registry.family_for("arch")
    message = str(caught.value)
    assert "'one' of plugin 'a' and 'two' of plugin 'b'" in message
    assert "--model-family one" in message
    assert {record.status for record in registry.records} == {"ok"}


def test_the_user_decides_between_claims_and_against_the_file(of_families):
    registry = of_families(a=[("one", ("arch",))], b=[("two", ("arch",))])
    assert registry.family_for("arch", "two").name == "two"
    assert registry.family_for("something else", "one").name == "one"


def test_a_file_is_not_forced_on_a_family_when_another_claims_it(of_families):
    registry = of_families(a=[("one", ("arch",))], b=[("two", ("arch-b", "arch-c"))])
    with pytest.raises(SettingsError) as caught:
        registry.family_for("arch", "two")
    assert str(caught.value) == (
        "--model-family two: the file's architecture is 'arch', which 'one' handles and 'two' "
        "(arch-b, arch-c) does not; leave the flag out"
    )


def test_an_override_that_is_not_installed_lists_those_that_are(of_families):
    registry = of_families(a=[("one", ("arch",))])
    with pytest.raises(SettingsError) as caught:
        registry.family_for("arch", "oen")
    assert str(caught.value) == (
        "--model-family oen: no such family; installed: 'one' (plugin 'a')"
    )


def test_a_drafter_file_goes_to_the_family_that_drafts(plugin, family_class):
    family = family_class("one", ("arch",))
    family.drafter_architectures = ("arch-draft",)
    module = plugin("@hookimpl\ndef register_families(): return [FAMILY]")
    module.FAMILY = family
    registry = Registry.build({"a": module})
    assert registry.family_for("arch-draft", drafter=True).family is family
    assert registry.family_for("arch", drafter=True).family is family
    with pytest.raises(UnsupportedModelError, match=r"drafter of family 'one'.*cannot answer"):
        registry.family_for("arch-draft")


# -- a family's descriptor ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("name", "", "has name ''; a name is made of letters, digits"),
        ("name", 7, "has name 7"),
        ("architectures", "arch", "has architectures 'arch'; it must be a tuple of str"),
        ("architectures", ["arch"], "has architectures ['arch']; it must be a tuple of str"),
        ("architectures", ("Arch",), "'Arch'; architectures are lower case"),
        ("architectures", (" arch",), "' arch'; architectures are lower case"),
        ("architectures", (), "claims no architecture"),
        ("drafter_architectures", None, "has drafter_architectures None"),
        ("read_config", None, "has read_config that is no method; it must be read_config(meta)"),
        ("build", lambda config: None, "it must be build(config, weights, context)"),
        ("hooks", lambda: None, "it must be hooks(config)"),
    ],
)
def test_a_family_with_a_wrong_part_is_refused(plugin, family_class, attribute, value, reason):
    family = family_class()
    setattr(family, attribute, value)
    module = plugin("@hookimpl\ndef register_families(): return [FAMILY]")
    module.FAMILY = family
    registry = Registry.build({"a": module}, builtin=False)
    (record,) = registry.records
    assert record.status == "failed"
    assert reason in record.reason


def test_a_class_in_place_of_a_family_is_refused(plugin, family_class):
    module = plugin("@hookimpl\ndef register_families(): return [FAMILY]")
    module.FAMILY = family_class
    (record,) = Registry.build({"a": module}, builtin=False).records
    assert record.reason.endswith("the class Sound, which is a class; register an instance of it")


def test_missing_methods_are_listed_with_the_base_that_has_them(plugin):
    module = plugin(
        """
        class Bare:
            name = "bare"
            architectures = ("bare",)
            drafter_architectures = ()
            def read_config(self, meta): ...
            def weight_plan(self, config, inventory): ...
            def build(self, config, weights, context): ...
            def hooks(self, config): ...
            def chat(self, meta): ...
        @hookimpl
        def register_families(): return [Bare()]
        """
    )
    (record,) = Registry.build({"a": module}, builtin=False).records
    assert (
        "has no pretokenizers, shapes, model_cards, convert, tiny, bundled_model" in record.reason
    )
    assert "subclass kinfolk.descriptors.FamilyBase" in record.reason


# -- other descriptors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "value", "reason"),
    [
        ("register_op_backends", "OpBackend('', 'n', 'm:f')", "OpBackend.op: ''; a name is"),
        (
            "register_op_backends",
            "OpBackend('o', 'n', 'f')",
            "OpBackend.function: 'f'; a reference",
        ),
        (
            "register_op_backends",
            "OpBackend('o', 'n', 'm:f', 'x')",
            "OpBackend.supports: 'x'; a refer",
        ),
        (
            "register_op_backends",
            "OpBackend('o', 'n', 'm:f', '', 1.5)",
            "OpBackend.priority: Input should be a valid integer",
        ),
        (
            "register_quant_formats",
            "QuantFormat('N', -1, 32, 18, 'm:f')",
            "QuantFormat.ggml_type: -1 is less than 0",
        ),
        (
            "register_quant_formats",
            "QuantFormat('N', 1, 0, 18, 'm:f')",
            "QuantFormat.block: 0 is less than 1",
        ),
        (
            "register_quant_formats",
            "QuantFormat('N', 1, 32, '8', 'm:f')",
            "QuantFormat.bytes: Input should be a valid integer, not '8'",
        ),
        (
            "register_quant_formats",
            "QuantFormat('N', 1, 32, 18, '')",
            "QuantFormat.dequantize: ''; a reference",
        ),
        (
            "register_quant_formats",
            "QuantFormat('N', 1, 2, 1, 'm:f', 'q')",
            "QuantFormat.quantize: 'q'; a reference",
        ),
        ("register_policies", "PolicySpec('p', 'm')", "PolicySpec.create: 'm'; a reference"),
        ("register_policies", "DrafterSpec('p', 'm:f')", "which is no PolicySpec"),
    ],
)
def test_a_descriptor_with_a_wrong_field_is_refused(of_source, hook, value, reason):
    registry = of_source(a=f"@hookimpl\ndef {hook}(): return [{value}]")
    (record,) = [record for record in registry.records if record.name == "a"]
    assert record.status == "failed"
    assert reason in record.reason


FAMILY = """
from kinfolk import hookimpl
from kinfolk.descriptors import FamilyBase
KINFOLK_API = (1, 0)
class Plain(FamilyBase):
    name = "plain"
    architectures = ("plain",)
    {}
@hookimpl
def register_families():
    return [Plain()]
"""
PARTS = 'config = "{0}:f"; weights = "{0}:f"; model = "{0}:f"; model_hooks = "{0}:f"'


def test_a_family_that_states_too_little_is_refused_by_the_names_of_its_methods(of_source):
    registry = of_source(poor=FAMILY.format('config = "some.module:read"'))
    (poor,) = [record for record in registry.records if record.name == "poor"]
    assert poor.status == "failed"
    assert "has no weight_plan, build, hooks" in poor.reason


def test_a_reference_of_a_family_that_leads_nowhere_is_named(of_source):
    registry = of_source(lost=FAMILY.format(PARTS.format("no_such_module")))
    family = registry.families["plain"].value
    with pytest.raises(PluginError) as caught:
        family.read_config(None)
    message = "family 'plain': config = 'no_such_module:f' cannot be resolved: No module named"
    assert message in str(caught.value)


def test_the_name_of_an_ops_own_reference_cannot_be_taken(of_source):
    registry = of_source(thief=BACKEND.format("reference"))
    (thief,) = [record for record in registry.records if record.name == "thief"]
    assert thief.status == "failed"
    assert "has name 'reference', which belongs to the op's own reference" in thief.reason


# -- clashes of names -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "word", "table"),
    [
        (DRAFTER.format("same"), "drafter 'same'", "drafters"),
        (POLICY.format("same"), "policy 'same'", "policies"),
        (FORMAT.format("SAME", 9000), "quant format 'SAME'", "quant_formats"),
        (BACKEND.format("same"), "op back end 'route=same'", "op_backends"),
    ],
    ids=["drafter", "policy", "format", "back end"],
)
def test_a_name_that_two_plugins_register_belongs_to_neither(of_source, source, word, table):
    before = getattr(Registry.build({}), table)
    registry = of_source(a=source, b=source)
    assert len(getattr(registry, table)) == len(before)
    records = {record.name: record for record in registry.records}
    assert records["kinfolk"].status == "ok"
    assert records["a"].status == records["b"].status == "conflict"
    assert f"{word} is also registered by plugin 'b' and was withdrawn" in records["a"].reason
    assert f"{word} is also registered by plugin 'a' and was withdrawn" in records["b"].reason


def test_two_families_of_one_name_are_withdrawn(of_families):
    registry = of_families(a=[("one", ("arch",))], b=[("one", ("other",))])
    assert not registry.families
    with pytest.raises(SettingsError, match="registered by plugin 'a' and by plugin 'b'"):
        registry.family_for("arch", "one")
    with pytest.raises(UnknownArchitectureError, match="family 'one' is also registered by"):
        registry.family_for("arch")


def test_a_clash_costs_a_plugin_only_the_name(of_source):
    registry = of_source(a=DRAFTER.format("same") + POLICY.format("mine"), b=DRAFTER.format("same"))
    assert "mine" in registry.policies
    assert "same" not in registry.drafters


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (DRAFTER.format("ngram"), "drafter 'ngram'"),
        (FORMAT.format("q8_0", 9000), "quant format 'Q8_0'"),
        (FORMAT.format("MINE", 8), "quant format 'type 8'"),
        (BACKEND.format("torch"), "op back end 'route=torch'"),
    ],
    ids=["drafter", "format name", "format type", "back end"],
)
def test_what_the_core_registers_cannot_be_taken(of_source, source, word):
    core = Registry.build({})
    registry = of_source(thief=source)
    assert registry.drafters == core.drafters
    assert registry.quant_formats == core.quant_formats
    assert registry.op_backends == core.op_backends
    (thief,) = [record for record in registry.records if record.name == "thief"]
    assert thief.status == "conflict"
    assert f"{word} is also registered by plugin 'kinfolk' (kinfolk" in thief.reason


def test_check_raises_for_a_conflict_as_for_a_failure(of_source):
    with pytest.raises(PluginError, match="drafter 'same'"):
        of_source(a=DRAFTER.format("same"), b=DRAFTER.format("same")).check()
    Registry.build({}).check()


# -- lookups, core, presentation ------------------------------------------------------------------


def test_an_unknown_drafter_or_policy_is_an_error_that_lists_the_names(of_source):
    registry = of_source(a=POLICY.format("eager"))
    with pytest.raises(SettingsError) as caught:
        registry.policy("lazy")
    assert str(caught.value) == ("--policy lazy: no such policy; installed: 'eager' (plugin 'a')")
    with pytest.raises(SettingsError, match=r"no such drafter; installed: 'dflash'.*'ngram'"):
        registry.drafter("x")
    with pytest.raises(SettingsError, match=r"--policy x: no such policy; installed: none"):
        Registry.build({}).policy("x")


def test_a_withdrawn_name_says_who_claims_it(of_source):
    registry = of_source(a=POLICY.format("same"), b=POLICY.format("same"))
    with pytest.raises(SettingsError, match="by plugin 'a' and by plugin 'b'; uninstall one"):
        registry.policy("same")


def test_the_core_registers_formats_back_ends_and_a_drafter_through_the_same_door():
    registry = Registry.build({})
    (core,) = registry.records
    assert (core.name, core.status, core.distribution) == ("kinfolk", "ok", "kinfolk")
    assert {"F32", "Q4_K", "MXFP4"} <= {item.value.name for item in registry.quant_formats}
    assert "ngram" in registry.drafters
    assert {"linear", "rms_norm"} <= {item.value.op for item in registry.op_backends}
    everything = [*registry.drafters.values(), *registry.quant_formats, *registry.op_backends]
    assert {item.plugin for item in everything} == {"kinfolk"}
    assert registry.op_backends


def test_every_reference_of_the_core_leads_somewhere():
    from kinfolk.descriptors import resolve

    registry = Registry.build({})
    specs = [item.value for item in registry.drafters.values()]
    fields = ("create", "prepare", "build", "convert")
    references = [getattr(spec, name) for spec in specs for name in fields if getattr(spec, name)]
    references += [item.value.function for item in registry.op_backends]
    references += [item.value.dequantize for item in registry.quant_formats]
    references += [item.value.quantize for item in registry.quant_formats if item.value.quantize]
    for reference in references:
        assert callable(resolve(reference)), reference


def test_a_broken_core_is_an_error_and_no_broken_plugin(monkeypatch):
    monkeypatch.setattr("kinfolk.builtin.KINFOLK_API", (9, 9))
    with pytest.raises(PluginError, match="the core's own plugin is broken"):
        Registry.build({})


def test_a_registry_is_frozen(of_source):
    registry = of_source(a=DRAFTER.format("d"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        registry.drafters = {}
    with pytest.raises(TypeError):
        registry.drafters["e"] = registry.drafters["d"]


def test_building_again_gives_the_same_registry(plugin):
    modules = {"a": plugin(DRAFTER.format("d"))}
    assert Registry.build(modules) == Registry.build(modules)


def test_the_order_of_the_modules_does_not_matter(plugin):
    one, two = plugin(DRAFTER.format("d")), plugin(DRAFTER.format("e"))
    assert Registry.build({"b": two, "a": one}) == Registry.build({"a": one, "b": two})


def test_describe_gives_plain_data_for_every_plugin(of_source):
    import json

    registry = of_source(a=DRAFTER.format("d"), bad="raise_later = 1\ndef register_families(): ...")
    described = {plugin["name"]: plugin for plugin in describe(registry)}
    assert json.loads(json.dumps(described)) == described
    assert list(described) == ["kinfolk", "a", "bad"]
    assert described["a"]["provides"]["drafters"] == ["d"]
    assert described["a"]["hooks"] == ["register_drafters"]
    assert described["bad"]["status"] == "failed"
    assert "not marked with @hookimpl" in described["bad"]["reason"]
    assert described["bad"]["provides"]["families"] == []
