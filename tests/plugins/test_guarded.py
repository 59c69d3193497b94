"""Every field of a family's answer has the declared type, or an error names the family."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import FunctionType, MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from kinfolk.config import ModelConfig
from kinfolk.convert.plan import Conversion, TensorRecipe, Transform
from kinfolk.descriptors import (
    DrafterSpec,
    ModelCard,
    ModelOutline,
    ReleasedShape,
    TinyModel,
    VocabularyOutline,
)
from kinfolk.errors import PluginError, UnsupportedModelError
from kinfolk.guarded import (
    GuardedCommand,
    GuardedDrafter,
    GuardedFamily,
    build_drafter,
    prepare_drafter,
)
from kinfolk.plans import WeightPlan, WeightSpec
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.text.formats import ChatFormat, PreTokenizer

OUTLINE = ModelOutline({"n": 1}, (("a", (1, 2)),))
SHAPE = ReleasedShape(
    "big", "sound", 3, lambda layers: OUTLINE, VocabularyOutline(9, "x", 8, (), "e", "p"), {}
)
RECIPE = TensorRecipe("a", (1,), (), Transform(lambda: np.ones(1, np.float32)))
CONVERSION = Conversion("sound", {"n": 1}, (RECIPE,), 9, lambda folder: {"k": folder.name})
CONFIG = ModelConfig(
    architecture="sound", layers=1, width=1, vocabulary=1, context=1, norm_eps=1e-6
)
MODEL = SimpleNamespace(**dict.fromkeys(("forward", "commit", "embed", "norm", "logits"), len))
WEIGHTS = WeightPlan((WeightSpec("a", (1, 2)),), MappingProxyType({"b": "not needed"}))

ARGUMENTS = {"read_config": 1, "weight_plan": 2, "build": 3, "hooks": 1, "chat": 1, "convert": 1}
GOOD = {
    "read_config": [CONFIG],
    "weight_plan": [WEIGHTS],
    "build": [MODEL],
    "hooks": [object()],
    "chat": [ChatFormat(("a",), think=("b", "c"), role_aliases=MappingProxyType({"d": "e"}))],
    "pretokenizers": [(), (PreTokenizer("x", ("a", "b")),)],
    "shapes": [()],
    "model_cards": [(), (ModelCard("x", max_tokens=3),)],
    "convert": [None],
    "tiny": [None],
    "bundled_model": [None, Path(__file__)],
}
BAD = [
    ("read_config", {"layers": 1}, "an object of type dict, which is no ModelConfig"),
    ("read_config", None, "None, which is no ModelConfig"),
    ("weight_plan", [], "which is no WeightPlan"),
    ("build", None, "None, which is no kinfolk.model_api.Model: it has no forward, commit, embed"),
    ("build", SimpleNamespace(forward=len, commit=len, norm=len), "it has no embed, logits"),
    ("chat", "chatml", "'chatml', which is no ChatFormat"),
    ("pretokenizers", None, "None, which is no tuple[PreTokenizer, ...]"),
    ("pretokenizers", "x", "'x', which is no tuple[PreTokenizer, ...]"),
    ("pretokenizers", [PreTokenizer("x", ("a",))], "an object of type list, which is no tuple"),
    ("pretokenizers", ("x",), "no tuple[PreTokenizer, ...]: 0: Input should be an instance"),
    ("shapes", (SHAPE, "big"), "no tuple[ReleasedShape, ...]: 1: Input should be an instance"),
    ("model_cards", {"x": ModelCard("x")}, "an object of type dict, which is no tuple"),
    ("convert", "sound", "'sound', which is no Conversion | None"),
    ("tiny", SHAPE, "ReleasedShape 'big', which is no TinyModel | None"),
    ("bundled_model", __file__, f"{__file__!r}, which is no pathlib.Path"),
    ("bundled_model", Path("no/such.gguf"), "which is no file"),
    ("bundled_model", Path(__file__).parent, "which is no file"),
]
# Records check their fields when they are built.
UNBUILDABLE = [
    ("weight_plan", lambda: WeightPlan([WeightSpec("a", (1,))]), "WeightPlan.weights: Input shou"),
    ("weight_plan", lambda: WeightSpec("a", (1.5,)), "WeightSpec.shape.0: Input should be"),
    ("weight_plan", lambda: WeightSpec("a", (1,), "tensor"), "WeightSpec.role: Input should be"),
    ("chat", lambda: ChatFormat("<|x|>"), "ChatFormat.stop_tokens: Input should be a valid tuple"),
    ("chat", lambda: ChatFormat(think=("a",)), "ChatFormat.think"),
    ("pretokenizers", lambda: PreTokenizer("x", ["a"]), "PreTokenizer.patterns: Input should be a"),
    ("pretokenizers", lambda: PreTokenizer("x", ("a", 7)), "PreTokenizer.patterns.1: Input should"),
    ("shapes", lambda: replace(SHAPE, layers="3"), "ReleasedShape.layers: Input should be a valid"),
    ("shapes", lambda: replace(SHAPE, outline=OUTLINE), "ReleasedShape.outline: Input should be c"),
    ("shapes", lambda: replace(SHAPE, mixes={"q": "Q4"}), "ReleasedShape.mixes.q: Input should be"),
    ("model_cards", lambda: ModelCard("x", sampling=0.5), "ModelCard.sampling: Input should be an"),
    ("convert", lambda: replace(CONVERSION, tensors=[RECIPE]), "Conversion.tensors: Input should"),
    ("convert", lambda: replace(CONVERSION, tokenizer={}), "Conversion.tokenizer: Input should be"),
    ("tiny", lambda: TinyModel(SHAPE, others=("x",)), "TinyModel.others.0: Input should be an ins"),
]


@pytest.fixture
def asked(family_class):
    """``asked(method, answer)``: what a guarded family with this answer gives; exceptions are
    raised."""

    def run(method, answer):
        def call(*arguments):
            if isinstance(answer, BaseException):
                raise answer
            return answer() if isinstance(answer, FunctionType) else answer

        family = family_class()
        setattr(family, method, call)
        guarded = GuardedFamily.of(family, "plugin 'p' (dist 1)")
        return getattr(guarded, method)(*range(ARGUMENTS.get(method, 0)))

    return run


@pytest.mark.parametrize(
    ("method", "answer"), [(method, answer) for method, some in GOOD.items() for answer in some]
)
def test_what_is_declared_is_handed_on_as_it_is(asked, method, answer):
    assert asked(method, answer) is answer


@pytest.mark.parametrize(("method", "answer", "said"), BAD)
def test_another_type_is_an_error_that_names_plugin_method_and_field(asked, method, answer, said):
    with pytest.raises(PluginError) as caught:
        asked(method, answer)
    who = f"family 'sound' of plugin 'p' (dist 1): Family.{method} returned "
    assert str(caught.value).startswith(who)
    assert said in str(caught.value)


@pytest.mark.parametrize(("method", "build", "said"), UNBUILDABLE)
def test_a_record_with_a_wrong_field_is_an_error_that_names_plugin_and_field(
    asked, method, build, said
):
    with pytest.raises(PluginError) as caught:
        asked(method, build)
    who = f"family 'sound' of plugin 'p' (dist 1): Family.{method} failed: ValueError: {said}"
    assert str(caught.value).startswith(who)


@pytest.mark.parametrize("method", GOOD)
@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(1)])
def test_an_exception_is_an_error_that_names_plugin_and_method(asked, method, error):
    with pytest.raises(PluginError) as caught:
        asked(method, error)
    kind = type(error).__name__
    who = f"family 'sound' of plugin 'p' (dist 1): Family.{method} failed: {kind}"
    assert str(caught.value).startswith(who)


@pytest.mark.parametrize("method", GOOD)
def test_a_family_may_refuse_a_file_and_not_what_it_brings_itself(asked, method):
    error = UnsupportedModelError("no experts here")
    with pytest.raises(UnsupportedModelError if method in ARGUMENTS else PluginError) as caught:
        asked(method, error)
    assert (caught.value is error) == (method in ARGUMENTS)


# -- functions that answers hold ------------------------------------------------------------------

WHO = "family 'sound' of plugin 'p' (dist 1): "


def test_the_outline_of_a_shape_is_behind_the_door(asked):
    (shape,) = asked("shapes", (SHAPE,))
    assert shape.outline(3) is OUTLINE
    (broken,) = asked("shapes", (replace(SHAPE, outline=lambda layers: {}[layers]),))
    with pytest.raises(PluginError) as caught:
        broken.outline(3)
    assert str(caught.value).startswith(f"{WHO}outline of 'big' failed: KeyError: 3 (")
    tiny = asked("tiny", TinyModel(SHAPE, others=(TinyModel(replace(SHAPE, outline=len)),)))
    with pytest.raises(PluginError, match="outline of 'big' failed: TypeError"):
        tiny.others[0].shape.outline(3)
    (wrong,) = asked(
        "shapes", (replace(SHAPE, outline=lambda layers: replace(OUTLINE, group="1")),)
    )
    with pytest.raises(PluginError, match=r"outline of 'big' failed: ValueError: ModelOutline\.g"):
        wrong.outline(3)


def test_the_functions_of_a_conversion_are_behind_the_door(asked, tmp_path):
    sound = asked("convert", CONVERSION)
    assert sound.tokenizer(tmp_path) == {"k": tmp_path.name}
    assert sound.source_name("a") == "a"
    assert sound.tensors[0].transform.apply().tolist() == [1]
    wide = replace(RECIPE, transform=Transform(lambda: np.ones(1)))
    broken = asked(
        "convert",
        replace(CONVERSION, tensors=(wide,), tokenizer=len, source_name=lambda name: None),
    )
    for call, said in (
        (lambda: broken.tokenizer(tmp_path), "Conversion.tokenizer failed: TypeError"),
        (lambda: broken.source_name("a"), "Conversion.source_name returned None, which is no str"),
        (broken.tensors[0].transform.apply, "Transform.apply of 'a' returned an object of type nd"),
    ):
        with pytest.raises(PluginError) as caught:
            call()
        assert str(caught.value).startswith(WHO + said)


# -- drafters -------------------------------------------------------------------------------------


@pytest.fixture
def drafter(monkeypatch, info):
    """``drafter(create)``: the guarded form of a drafter that ``create`` makes."""

    def make(create):
        module = SimpleNamespace(create=create)
        monkeypatch.setitem(sys.modules, "made_drafter", module)
        spec = DrafterSpec("mine", "made_drafter:create")
        return GuardedDrafter.create(spec, "plugin 'p'", info)

    return make


def proposing(tokens):
    return SimpleNamespace(propose=lambda known, limit: tokens, release=lambda known: None)


def test_a_drafter_is_asked_through_the_door(drafter):
    found = drafter(lambda info: proposing([1, 2]))
    assert found.propose([1], 2) == [1, 2]
    assert found.release([1]) is None


@pytest.mark.parametrize(
    ("create", "said"),
    [
        (lambda info: {}[info.name], "made_drafter:create failed: KeyError"),
        (lambda info: None, "made_drafter:create returned None, which is no kinfolk.draft_api"),
        (lambda info: SimpleNamespace(propose=len), "Drafter: it has no release"),
        (7, "made_drafter:create failed: TypeError"),
    ],
)
def test_a_drafter_that_cannot_be_made_is_an_error_that_names_it(drafter, create, said):
    with pytest.raises(PluginError) as caught:
        drafter(create)
    assert str(caught.value).startswith("drafter 'mine' of plugin 'p': ")
    assert said in str(caught.value)


@pytest.mark.parametrize("tokens", [None, "12", 7, [1, "2"], [True], [1.0], {1: 2}])
def test_proposals_that_are_no_tokens_are_an_error_that_names_the_drafter(drafter, tokens):
    found = drafter(lambda info: proposing(tokens))
    with pytest.raises(PluginError, match=r"^drafter 'mine' of plugin 'p': propose returned .* no"):
        found.propose([1], 2)


# -- drafters with weights ------------------------------------------------------------------------


@pytest.fixture
def with_weights(monkeypatch):
    """``with_weights(prepare=..., build=...)``: the spec of a drafter of these functions."""

    def make(**functions):
        monkeypatch.setitem(sys.modules, "made_drafter", SimpleNamespace(**functions))
        return DrafterSpec("mine", prepare="made_drafter:prepare", build="made_drafter:build")

    return make


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda file, facts: file.path, "made_drafter:prepare failed: AttributeError"),
        (lambda file, facts: 7, "made_drafter:prepare returned 7, which is no DraftPlan"),
        (lambda file: None, "made_drafter:prepare failed: TypeError"),
    ],
)
def test_a_drafter_that_cannot_plan_is_an_error_that_names_it(with_weights, prepare, said):
    with pytest.raises(PluginError) as caught:
        prepare_drafter(with_weights(prepare=prepare), "plugin 'p'", None, None)
    assert str(caught.value).startswith("drafter 'mine' of plugin 'p': ")
    assert said in str(caught.value)


def test_a_drafter_may_refuse_a_file_or_know_nothing_of_it(with_weights):
    def refuse(file, facts):
        raise UnsupportedModelError("not this one")

    with pytest.raises(UnsupportedModelError, match=r"^not this one$"):
        prepare_drafter(with_weights(prepare=refuse), "plugin 'p'", None, None)
    nothing = with_weights(prepare=lambda file, facts: None)
    assert prepare_drafter(nothing, "plugin 'p'", None, None) is None


def test_what_is_built_has_the_methods_of_a_drafter(with_weights):
    methods = {"extend": len, "commit": len, "draft": len}
    whole = SimpleNamespace(**methods)
    spec = with_weights(build=lambda plan, weights, context, target: whole)
    assert build_drafter(spec, "plugin 'p'", None, None, None, None) is whole
    for name in methods:
        part = SimpleNamespace(**{each: len for each in methods if each != name})
        spec = with_weights(build=lambda plan, weights, context, target, part=part: part)
        with pytest.raises(PluginError, match=f"is no kinfolk.draft_api.*: it has no {name}$"):
            build_drafter(spec, "plugin 'p'", None, None, None, None)


# -- commands -------------------------------------------------------------------------------------


def test_a_command_has_the_name_under_which_it_was_added(plugin):
    body = """
    import click
    @hookimpl
    def register_commands(cli):
        cli.add_command(click.Command("one", short_help="Says it."), "other")
        cli.add_command(click.Command("secret", hidden=True))
    """
    registry = Registry.build({"p": plugin(body)})
    assert {name: found.value.hidden for name, found in registry.commands.items()} == {
        "other": False,
        "secret": True,
    }
    assert registry.commands["other"].value.short_help() == "Says it."


def test_what_is_no_command_is_refused(record_of):
    body = "@hookimpl\ndef register_commands(cli): cli.commands['x'] = 7"
    record = record_of(body)
    assert record.status == "failed"
    assert record.reason == "register_commands added 7, which is no click.Command"


# -- presentation ---------------------------------------------------------------------------------


@pytest.fixture
def examined(plugin, family_class):
    """``examined(**methods)``: the records, by name, where a family answers with these."""

    def run(**methods):
        family = family_class()
        for name, call in methods.items():
            setattr(family, name, call)
        module = plugin("@hookimpl\ndef register_families(): return [FAMILY]")
        module.FAMILY = family
        registry = Registry.build({"p": module, "other": plugin()}).examined()
        return {record.name: record for record in registry.records}, registry

    return run


def test_a_sound_plugin_stays_ok(examined):
    records, registry = examined()
    assert {record.status for record in records.values()} == {"ok"}
    assert registry.problems() == ()


def test_a_plugin_that_fails_later_is_failed_with_every_reason(examined):
    records, registry = examined(shapes=lambda: 7, model_cards=lambda: [][0])
    assert records["other"].status == "ok"
    assert records["p"].status == "failed"
    shapes, cards = records["p"].reason.split("; ")
    assert (
        shapes == "family 'sound': Family.shapes returned 7, which is no tuple[ReleasedShape, ...]"
    )
    assert cards.startswith("family 'sound': Family.model_cards failed: IndexError: ")
    assert records["p"].trace.startswith("Traceback")
    assert registry.problems() == (f"plugin 'p': {records['p'].reason}",)
    with pytest.raises(PluginError, match=r"Family\.shapes returned 7"):
        registry.check()


def test_our_own_families_answer_as_they_declare():
    registry = Registry.discover(load_settings(plugins=("gemma4", "laguna", "qwen35", "qwen35moe")))
    assert len(registry.families) == 4
    assert registry.examined() == registry


def test_help_of_a_command_is_asked_too(plugin):
    command = SimpleNamespace(get_short_help_str=lambda limit: 7)
    (fault,) = GuardedCommand("c", command, "plugin 'p'").faults()
    assert str(fault) == "command 'c': get_short_help_str returned 7, which is no str"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def __getattr__(name): raise RuntimeError('nothing here')", "nothing here"),
        ("def __dir__(): raise RuntimeError('no list today')", "no list today"),
    ],
)
def test_a_module_that_raises_when_looked_at_breaks_only_itself(record_of, body, reason):
    record = record_of(body, preamble="" if "getattr" in body else "KINFOLK_API = (1, 0)\n")
    assert record.status == "failed"
    assert reason in record.reason
