"""One hook caller for each loaded model: the order of its plugins, and which one is blamed."""

import dataclasses
import logging
from types import SimpleNamespace

import pytest
import torch

from kinfolk import hookimpl
from kinfolk.errors import CapacityError, HookValueError, PluginError
from kinfolk.hooks import UNANSWERED, CoreHooks, HookProvider, ModelHookCaller, family_provider
from kinfolk.plans import Codec, Paged, PoolRule, Section, SlotMapping, StatePlan
from kinfolk.verify_api import Kept, VerifyStep

CONFIG = SimpleNamespace(layers=1)
SHAPE = SimpleNamespace(kind="decode", rows=1, sequences=1)
STEP = VerifyStep(torch.zeros(1, 3), torch.zeros(1, 2, dtype=torch.int64))


def kept(rows=1, width=2):
    return Kept(
        torch.zeros(rows, width, dtype=torch.int64),
        torch.ones(rows, dtype=torch.int64),
        torch.zeros(rows, dtype=torch.int64),
    )


class Says:
    """Answers ``verify`` and ``allocate_cache`` with one value, and records each call."""

    def __init__(self, value=None, log=None, name=""):
        self.value, self.log, self.name = value, log if log is not None else [], name

    @hookimpl
    def verify(self, step):
        self.log.append(self.name)
        return self.value

    @hookimpl
    def allocate_cache(self):
        self.log.append(self.name)
        return self.value


class Raises:
    def __init__(self, error):
        self.error = error

    @hookimpl
    def verify(self):
        raise self.error


class Wraps:
    """Replaces the answer to ``verify``."""

    def __init__(self, change):
        self.change = change

    @hookimpl(wrapper=True)
    def verify(self, step):
        value = yield
        return self.change(value)


def ask(caller):
    return caller.verify(step=STEP, draft=2, sampling=3)


# -- order ----------------------------------------------------------------------------------------


def test_policies_are_asked_as_given_then_the_family_then_the_core():
    log = []
    answer = kept()
    caller = ModelHookCaller(
        HookProvider("family", Says(None, log, "family")),
        [Says(None, log, "core 1"), Says(answer, log, "core 2")],
        [HookProvider("p1", Says(None, log, "p1")), HookProvider("p2", Says(None, log, "p2"))],
    )
    assert ask(caller) is answer
    assert log == ["p1", "p2", "family", "core 1", "core 2"]
    assert caller.asked("verify") == ("p1", "p2", "family", "core", "core")


def test_the_first_answer_ends_the_asking():
    log = []
    answer = kept()
    caller = ModelHookCaller(
        HookProvider("family", Says(kept(), log, "family")),
        [Says(kept(), log, "core")],
        [HookProvider("p1", Says(None, log, "p1")), HookProvider("p2", Says(answer, log, "p2"))],
    )
    assert ask(caller) is answer
    assert log == ["p1", "p2"]


def test_arguments_arrive_by_name_and_may_be_left_out():
    seen = {}

    class Looks:
        @hookimpl
        def verify(self, sampling, step):
            seen.update(step=step, sampling=sampling)
            return kept()

    ask(ModelHookCaller(HookProvider("family", Looks()), []))
    assert seen == {"step": STEP, "sampling": 3}


def test_the_core_runs_the_model_as_built_unless_someone_has_a_better_step():
    model = SimpleNamespace(forward=lambda batch, view: "plain")
    caller = ModelHookCaller(HookProvider("family", object()))
    assert caller.build_graph(model, SHAPE) is model.forward
    assert caller.asked("build_graph") == ("core",)

    class Fused:
        @hookimpl
        def build_graph(self, model, shape):
            return None if shape.rows > 1 else print

    fused = ModelHookCaller(HookProvider("family", Fused()))
    assert fused.build_graph(model, SHAPE) is print
    assert fused.asked("build_graph") == ("family", "core")
    wide = SimpleNamespace(kind="decode", rows=2, sequences=1)
    assert fused.build_graph(model, wide) is model.forward


def test_the_last_chunk_of_a_sequence_always_stays(state_plan, limits):
    class Forgets:
        @hookimpl
        def map_slots(self):
            return SlotMapping((PoolRule(tail=0),))

    caller = ModelHookCaller(HookProvider("family 'f'", Forgets()))
    with pytest.raises(HookValueError, match=r"keeps none of the last chunks.* family 'f'"):
        caller.map_slots(state_plan, limits)


def test_policies_can_be_added_to_a_caller_that_has_answered(state_plan, limits):
    family = Says(state_plan)
    alone = ModelHookCaller(HookProvider("family", family))
    assert alone.allocate_cache(CONFIG, limits) is state_plan
    other = StatePlan((Paged((Section("k", 3, 8),)),))
    both = alone.with_policies([HookProvider("p", Says(other))])
    assert both.allocate_cache(CONFIG, limits) is other
    assert alone.allocate_cache(CONFIG, limits) is state_plan
    assert [provider.label for provider in both.providers] == ["p", "family", "core"]


# -- identity and isolation -----------------------------------------------------------------------


def test_objects_that_compare_equal_stay_two_plugins():
    @dataclasses.dataclass
    class Counts:
        calls: list = dataclasses.field(default_factory=list, compare=False)

        @hookimpl
        def verify(self):
            self.calls.append(1)

    one, two = Counts(), Counts()
    assert one == two
    caller = ModelHookCaller(
        HookProvider("family", Says(kept())), [], [HookProvider("p1", one), HookProvider("p2", two)]
    )
    ask(caller)
    assert (one.calls, two.calls) == ([1], [1])


def test_two_policies_of_one_label_are_both_asked():
    log = []
    providers = [
        HookProvider("p", Says(None, log, "first")),
        HookProvider("p", Says(None, log, "second")),
    ]
    ask(ModelHookCaller(HookProvider("family", Says(kept())), [], providers))
    assert log == ["first", "second"]


def test_two_loaded_models_never_see_each_others_hooks(state_plan, limits):
    other_plan = StatePlan((Paged((Section("k", 7, 8),)),))
    one, two = Says(state_plan), Says(other_plan)
    first = ModelHookCaller(HookProvider("family one", one))
    second = ModelHookCaller(
        HookProvider("family two", two), None, [HookProvider("p", Wraps(lambda v: v))]
    )
    assert first.allocate_cache(CONFIG, limits) is state_plan
    assert (len(one.log), len(two.log)) == (1, 0)
    assert second.allocate_cache(CONFIG, limits) is other_plan
    assert (len(one.log), len(two.log)) == (1, 1)
    assert first.asked("verify") == ("family one",)
    assert second.asked("verify") == ("p", "family two")


def test_one_family_gives_each_model_its_own_object(family_class):
    class Family(family_class):
        def hooks(self, config):
            return Says(config)

    family = Family()
    one, two = family_provider(family, "a"), family_provider(family, "b")
    assert one.hooks is not two.hooks
    assert (one.hooks.value, two.hooks.value) == ("a", "b")


def test_no_property_of_a_hooks_object_is_evaluated():
    class Trap(Says):
        @property
        def trap(self):
            raise AssertionError("looked at")

    ask(ModelHookCaller(HookProvider("family", Trap(kept())), []))


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_static_and_class_methods_can_be_hooks(kind):
    answer = kept()

    if kind is staticmethod:

        class Hooks:
            @hookimpl
            @staticmethod
            def verify(step):
                return answer
    else:

        class Hooks:
            @hookimpl
            @classmethod
            def verify(cls, step):
                return answer

    assert ask(ModelHookCaller(HookProvider("family", Hooks()), [])) is answer


# -- wrappers -------------------------------------------------------------------------------------


def test_a_wrapper_changes_one_codec_of_the_familys_plan(state_plan, limits):
    class Squeezes:
        @hookimpl(wrapper=True)
        def allocate_cache(self):
            plan = yield
            layer = plan.layers[0]
            first = dataclasses.replace(layer.sections[0], codec=Codec("q8_0"))
            return StatePlan((Paged((first, *layer.sections[1:])),))

    caller = ModelHookCaller(
        HookProvider("family", Says(state_plan)), None, [HookProvider("p", Squeezes())]
    )
    codecs = [
        section.codec.format for section in caller.allocate_cache(CONFIG, limits).layers[0].sections
    ]
    assert codecs == ["q8_0", "bf16"]


def test_the_first_policys_wrapper_is_the_outermost():
    def adds(column):
        def change(value):
            path = torch.cat([value.path, torch.full((1, 1), column)], 1)
            return Kept(path, value.n_keep, value.next)

        return change

    caller = ModelHookCaller(
        HookProvider("family", Says(kept(1, 1))),
        [],
        [HookProvider("outer", Wraps(adds(1))), HookProvider("inner", Wraps(adds(2)))],
    )
    step = VerifyStep(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.int64))
    assert caller.verify(step=step, draft=2, sampling=3).path.tolist() == [[0, 2, 1]]


# -- blame ----------------------------------------------------------------------------------------


def test_a_bad_value_names_the_hook_its_author_and_the_order():
    caller = ModelHookCaller(
        HookProvider("family 'f'", Says(kept())),
        [Says(kept())],
        [HookProvider("policy 'a'", Says(None)), HookProvider("policy 'b'", Says("nonsense"))],
    )
    with pytest.raises(HookValueError) as caught:
        ask(caller)
    assert str(caught.value) == (
        "hook verify: policy 'b' returned 'nonsense', which is no kinfolk.verify_api.Kept; "
        "asked in this order: policy 'a', policy 'b', family 'f', core"
    )


def test_an_answer_of_another_type_is_refused_by_every_hook(state_plan, limits):
    class Seven:
        @hookimpl
        def allocate_cache(self):
            return [*state_plan.layers]

        @hookimpl
        def build_graph(self):
            return 7

        @hookimpl
        def map_slots(self):
            return 7

        @hookimpl
        def place_experts(self):
            return 7

    caller = ModelHookCaller(HookProvider("family 'f'", Seven()))
    for ask_hook, kind in (
        (lambda: caller.allocate_cache(CONFIG, limits), "kinfolk.plans.StatePlan"),
        (lambda: caller.build_graph(None, SHAPE), "collections.abc.Callable"),
        (lambda: caller.map_slots(state_plan, limits), "kinfolk.plans.SlotMapping"),
        (lambda: caller.place_experts(None, 1), "kinfolk.plans.Placement"),
    ):
        with pytest.raises(HookValueError, match=f"family 'f' returned .* which is no {kind};"):
            ask_hook()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (kept(2, 2), r"Kept\.path is \[2, 2\], the rows are \[1, 2\]"),
        (kept(0, 2), r"Kept\.path is \[0, 2\], the rows are \[1, 2\]"),
        (kept(1, 1), r"Kept\.path is \[1, 1\], the rows are \[1, 2\]"),
        (kept(1, 3), r"Kept\.path is \[1, 3\], the rows are \[1, 2\]"),
        (dataclasses.replace(kept(), finite=torch.ones(2, dtype=torch.bool)), "no bool tensor"),
        (dataclasses.replace(kept(), finite=torch.ones(1)), r"no bool tensor \[1\] on cpu"),
    ],
)
def test_what_was_kept_of_other_rows_than_the_steps_is_refused(answer, words):
    """Kernels would read beyond the tensors."""
    caller = ModelHookCaller(HookProvider("family 'f'", Says(answer)))
    with pytest.raises(HookValueError, match=f"hook verify: .*{words}.*family 'f'"):
        ask(caller)


def test_state_of_more_or_fewer_layers_than_the_model_has_is_refused(state_plan, limits):
    caller = ModelHookCaller(HookProvider("family 'f'", Says(state_plan)))
    for layers in (0, 2):
        with pytest.raises(
            HookValueError, match=rf"state of 1 layers, the model has {layers}; .*'f'"
        ):
            caller.allocate_cache(SimpleNamespace(layers=layers), limits)


def test_falsy_values_are_answers_and_not_a_refusal():
    caller = ModelHookCaller(HookProvider("family 'f'", Says(False)), [Says(kept())])
    with pytest.raises(HookValueError, match="family 'f' returned False"):
        ask(caller)


def test_a_wrapper_that_spoils_the_answer_is_blamed_and_not_the_family():
    caller = ModelHookCaller(
        HookProvider("family 'f'", Says(kept())),
        [],
        [HookProvider("policy 'w'", Wraps(lambda value: 7))],
    )
    with pytest.raises(HookValueError, match="hook verify: the wrapper of policy 'w' returned 7"):
        ask(caller)


def test_a_wrapper_that_forgets_to_return_is_blamed():
    caller = ModelHookCaller(
        HookProvider("family 'f'", Says(kept())),
        [],
        [HookProvider("policy 'w'", Wraps(lambda value: None))],
    )
    with pytest.raises(
        HookValueError, match="the wrapper of policy 'w' returned None, which is no answer"
    ):
        ask(caller)


def test_no_answer_at_all_says_who_must_give_one(limits):
    with pytest.raises(HookValueError) as caught:
        ModelHookCaller(HookProvider("family 'f'", object())).allocate_cache(CONFIG, limits)
    assert str(caught.value) == (
        "hook allocate_cache: no answer; it has no implementation. family 'f' must implement it, "
        "because the core has no default"
    )
    with pytest.raises(HookValueError, match="asked in this order: policy 'p', family 'f'"):
        ModelHookCaller(
            HookProvider("family 'f'", Says(None)), None, [HookProvider("policy 'p'", Says(None))]
        ).allocate_cache(CONFIG, limits)


def test_an_exception_names_the_plugin_and_keeps_its_cause():
    error = ZeroDivisionError("division by zero")
    caller = ModelHookCaller(
        HookProvider("family 'f'", Says(kept())), [], [HookProvider("policy 'p'", Raises(error))]
    )
    with pytest.raises(PluginError) as caught:
        ask(caller)
    message = str(caught.value)
    assert message.startswith(
        "policy 'p' failed in hook verify: ZeroDivisionError: division by zero ("
    )
    assert "test_model_hooks.py, line" in message
    assert message.endswith("asked in this order: policy 'p', family 'f'")
    assert caught.value.__cause__ is error


def test_an_exception_in_a_wrapper_names_its_policy():
    def fail(value):
        raise KeyError("gone")

    caller = ModelHookCaller(
        HookProvider("family 'f'", Says(kept())), [], [HookProvider("policy 'w'", Wraps(fail))]
    )
    with pytest.raises(PluginError, match="the wrapper of policy 'w' failed in hook verify: Key"):
        ask(caller)


def test_a_hook_that_leaves_the_program_is_named_too():
    caller = ModelHookCaller(HookProvider("family 'f'", Raises(SystemExit(3))), [])
    with pytest.raises(PluginError, match="family 'f' failed in hook verify: SystemExit: 3"):
        ask(caller)


@pytest.mark.parametrize("error", [CapacityError("needs 3 GiB, 2 are free"), MemoryError()])
def test_our_own_errors_pass_unchanged(error):
    with pytest.raises(type(error)) as caught:
        ask(ModelHookCaller(HookProvider("family 'f'", Raises(error)), []))
    assert caught.value is error


def test_an_exception_of_the_core_is_not_blamed_on_a_plugin():
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError) as caught:
        ask(ModelHookCaller(HookProvider("family 'f'", object()), [Raises(error)]))
    assert caught.value is error


def test_a_caller_keeps_no_answer_alive():
    import weakref

    class Holder:
        def __call__(self):
            return None

    step = Holder()
    gone = weakref.ref(step)

    class Gives:
        @hookimpl
        def build_graph(self):
            return steps.pop()

    steps = [step]
    caller = ModelHookCaller(HookProvider("family 'f'", Gives()))
    assert caller.build_graph(None, SHAPE) is step
    del step
    assert gone() is None


def test_tracing_logs_who_answered(caplog):
    caplog.set_level(logging.INFO, "kinfolk.plugins")
    family = HookProvider("family 'f'", Says(kept()))
    ask(ModelHookCaller(family, []))
    assert caplog.messages == []
    ask(ModelHookCaller(family, [], [HookProvider("policy 'p'", Says(None))], trace=True))
    assert caplog.messages == [
        "verify: family 'f' answered; asked in this order: policy 'p', family 'f'"
    ]


def test_the_core_has_a_default_for_every_hook_but_allocate_cache(limits):
    """A family that states only its cache is complete."""
    from kinfolk.experts.placement import DefaultPlacement
    from kinfolk.hookcheck import MODEL, implementations
    from kinfolk.spec.verify import DefaultVerify
    from kinfolk.state.mapping import DefaultMapping

    defaults = {
        implementation.hook
        for core in (CoreHooks(), DefaultMapping(), DefaultPlacement(), DefaultVerify())
        for implementation in implementations(core)
    }
    assert defaults == set(MODEL) - {"allocate_cache"} - UNANSWERED
