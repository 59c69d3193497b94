"""Which back end an op is bound to, and the reasons given for the refused ones."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from kinfolk.descriptors import OpBackend, Verdict
from kinfolk.errors import PluginError, SettingsError, UnsupportedModelError
from kinfolk.ops.binding import ITS_PARTS, Decision, NotPrecompilableError, Ops
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk_kernels import compiling
from kinfolk_kernels.act_and_mul.op import ACT_AND_MUL, ActAndMulArguments
from kinfolk_kernels.verdict import Verdict as KernelVerdict


@pytest.fixture
def backend(monkeypatch):
    """``backend(name, priority, supports)``: a back end of act_and_mul that returns its name."""
    module = ModuleType("toy_backends")
    monkeypatch.setitem(sys.modules, "toy_backends", module)

    def make(name, priority=0, supports=None, device=""):
        setattr(module, name, lambda *args: name)
        if supports is not None:
            setattr(module, f"{name}_can", supports)
        can = "" if supports is None else f"toy_backends:{name}_can"
        return OpBackend("act_and_mul", name, f"toy_backends:{name}", can, priority, device)

    return make


ARGUMENTS = ActAndMulArguments("silu", torch.float32, torch.device("cpu"))
OPERANDS = torch.ones(2, 3), torch.ones(2, 3)


def run(ops):
    return ops.bind(ACT_AND_MUL, ARGUMENTS)(*OPERANDS)


def test_back_ends_are_asked_by_priority_and_the_reference_has_priority_0(backend):
    ops = Ops([backend("low", -1), backend("high", 7), backend("middle", 3)])
    assert ops.backends("act_and_mul") == ("high", "middle", "reference", "low")
    assert run(ops) == "high"


def test_equals_are_asked_in_the_order_they_were_registered(backend):
    assert run(Ops([backend("first"), backend("second")])) == "first"


def test_an_option_chooses_whatever_the_priority(backend):
    ops = Ops([backend("low"), backend("high", 7)], {"act_and_mul": "low"})
    assert ops.backends("act_and_mul") == ("low",)
    assert run(ops) == "low"


def test_an_unknown_option_is_an_error_that_lists_the_names(backend):
    with pytest.raises(
        SettingsError, match=r"'act_and_mul' has no back end 'fast' .*high, low, ref"
    ):
        Ops([backend("low"), backend("high", 7)], {"act_and_mul": "fast"})


def test_an_unknown_op_is_an_error_that_lists_the_ops(backend):
    with pytest.raises(SettingsError, match=r"op 'silu' has no back end 'low' .*'act_and_mul'"):
        Ops([backend("low")], {"silu": "low"})


def test_one_for_another_device_is_asked_only_by_name(backend):
    backends = [backend("plain"), backend("fast", 9, device="cuda")]
    assert Ops(backends).backends("act_and_mul") == ("plain", "reference")
    on_gpu = Ops(backends, device="cuda").backends("act_and_mul")
    assert on_gpu == ("fast", "plain", "reference")
    assert run(Ops(backends, {"act_and_mul": "fast"})) == "fast"


# -- refusals -------------------------------------------------------------------------------------


def no(reason):
    return lambda *args: Verdict(False, reason)


def test_a_refusal_is_kept_with_its_reason_and_logged_once(backend, caplog):
    caplog.set_level("INFO")
    ops = Ops([backend("plain"), backend("fast", 9, no("needs 128 columns, not 3"))])
    assert [run(ops), run(ops)] == ["plain", "plain"]
    refused = (("fast", "needs 128 columns, not 3"),)
    assert ops.decisions == {("act_and_mul", "plain"): Decision("act_and_mul", "plain", refused)}
    assert caplog.text.count("runs on plain; fast refused: needs 128 columns, not 3") == 1


def test_a_back_end_is_asked_once_for_each_binding_and_never_by_a_call(backend):
    asked = []

    def only_silu(arguments):
        asked.append(arguments.activation)
        return Verdict(arguments.activation == "silu", "no silu")

    ops = Ops([backend("plain"), backend("fast", 9, only_silu)])
    bound = [ops.bind(ACT_AND_MUL, replace(ARGUMENTS, activation=a)) for a in ("silu", "gelu_tanh")]
    answers = [call(*OPERANDS) for call in (*bound, *bound)]
    assert answers == ["fast", "plain", "fast", "plain"]
    assert asked == ["silu", "gelu_tanh"]
    assert set(ops.decisions) == {("act_and_mul", "plain"), ("act_and_mul", "fast")}


@pytest.mark.parametrize("verdict", [None, False, Verdict(False)])
def test_whoever_does_not_say_yes_says_no(backend, verdict):
    ops = Ops([backend("plain"), backend("fast", 9, lambda *args: verdict)])
    assert run(ops) == "plain"
    assert ops.decisions["act_and_mul", "plain"].refused == (("fast", "gave no reason"),)


def test_the_reference_is_the_last_resort_and_every_reason_is_kept(backend):
    ops = Ops([backend("a", 0, no("too wide")), backend("b", 5, no("too long"))])
    assert torch.equal(run(ops), ACT_AND_MUL.reference(ARGUMENTS, *OPERANDS))
    refused = (("b", "too long"), ("a", "too wide"))
    assert ops.decisions["act_and_mul", "reference"].refused == refused


def test_the_chosen_one_is_not_replaced_when_it_refuses(backend):
    ops = Ops([backend("plain"), backend("fast", 9, no("too wide"))], {"act_and_mul": "fast"})
    with pytest.raises(UnsupportedModelError, match="fast: too wide"):
        run(ops)


def test_an_op_without_back_ends_runs_on_its_reference():
    ops = Ops([])
    assert torch.equal(run(ops), ACT_AND_MUL.reference(ARGUMENTS, *OPERANDS))
    assert ops.names == ("act_and_mul",)


@pytest.mark.parametrize("reference", ["no_such_module:f", "toy_backends:no_such_name"])
def test_a_back_end_that_cannot_be_loaded_takes_nothing_down(backend, reference, caplog):
    caplog.set_level("WARNING", "kinfolk.ops")
    broken = OpBackend("act_and_mul", "broken", reference, priority=99)
    ops = Ops([backend("plain"), broken])
    assert [run(ops), run(ops)] == ["plain", "plain"]
    ((name, reason),) = ops.decisions["act_and_mul", "plain"].refused
    assert name == "broken"
    assert reason.startswith("cannot be loaded: ")
    assert "no_such" in reason
    assert caplog.text.count("cannot be loaded") == 1


def test_an_error_in_a_back_end_is_not_covered_up(backend):
    def fails(*args):
        raise FloatingPointError("inside")

    broken = backend("fast", 9)
    sys.modules["toy_backends"].fast = fails
    ops = Ops([backend("plain"), broken])
    with pytest.raises(FloatingPointError, match="inside"):
        run(ops)


# -- back ends of plugins -------------------------------------------------------------------------

OTHERS = "plugin 'p' (dist 1)"
WHO = f"back end 'fast' of op 'act_and_mul' of {OTHERS}: "


@pytest.fixture
def foreign(backend):
    """``foreign(function, supports)``: a third-party back end, asked before the others."""

    def make(function, supports=None):
        made = replace(backend("fast", 9, supports), source=OTHERS)
        sys.modules["toy_backends"].fast = function
        return made

    return make


def raising(error):
    def call(*arguments):
        raise error

    return call


@pytest.mark.parametrize(
    ("supports", "said"),
    [
        (raising(KeyError("x")), "toy_backends:fast_can failed: KeyError: 'x'"),
        (raising(SystemExit(3)), "toy_backends:fast_can failed: SystemExit: 3"),
        (lambda *arguments: None, "toy_backends:fast_can returned None, which is no kinfolk."),
        (lambda *arguments: "no", "toy_backends:fast_can returned 'no', which is no kinfolk."),
        (lambda *arguments: torch.ones(1), "toy_backends:fast_can returned an object of type T"),
        (7, "loading it returned an object of type _Implementation, which holds something"),
    ],
)
def test_a_plugins_back_end_that_fails_to_say_whether_it_can_is_asked_no_more(
    backend, foreign, caplog, supports, said
):
    caplog.set_level("WARNING", "kinfolk.ops")
    ops = Ops([backend("plain"), foreign(lambda *arguments: "fast", supports)])
    assert [run(ops), run(ops)] == ["plain", "plain"]
    ((name, reason),) = ops.decisions["act_and_mul", "plain"].refused
    assert name == "fast"
    assert reason.startswith(WHO + said)
    assert ops.broken == {("act_and_mul", "fast"): reason}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("verdict", [True, Verdict(True), KernelVerdict(True)])
def test_a_plugins_back_end_may_answer_with_any_verdict(backend, foreign, verdict):
    ops = Ops([backend("plain"), foreign(lambda *arguments: "fast", lambda *arguments: verdict)])
    assert run(ops) == "fast"
    assert ops.broken == {}


def test_an_error_in_a_plugins_back_end_names_it_and_is_not_covered_up(backend, foreign):
    ops = Ops([backend("plain"), foreign(raising(FloatingPointError("inside")))])
    with pytest.raises(PluginError) as caught:
        run(ops)
    assert str(caught.value).startswith(f"{WHO}toy_backends:fast failed: FloatingPointError: ins")
    assert isinstance(caught.value.__cause__, FloatingPointError)


def test_a_plugins_back_end_that_returns_nothing_is_named_where_there_is_a_result(foreign):
    with pytest.raises(PluginError) as caught:
        run(Ops([foreign(lambda *arguments: None)]))
    assert str(caught.value) == f"{WHO}toy_backends:fast returned None, which is no result"


def test_a_module_that_leaves_the_program_is_not_loaded(backend, foreign, monkeypatch):
    module = ModuleType("toy_leaves")
    module.__getattr__ = raising(SystemExit(3))
    monkeypatch.setitem(sys.modules, "toy_leaves", module)
    leaving = replace(foreign(len), function="toy_leaves:f")
    assert run(Ops([backend("plain"), leaving])) == "plain"


# -- back ends of kinfolk -------------------------------------------------------------------------


def test_references_are_not_registered_and_every_op_has_one():
    bound_ops = {backend.op for backend in OP_BACKENDS}
    for op in bound_ops:
        assert Ops(OP_BACKENDS).backends(op)[-1] == "reference"


# -- captures and warmups -------------------------------------------------------------------------


def test_ops_that_no_graph_can_hold_are_known_once_they_are_bound(backend):
    ops = Ops([replace(backend("free"), capturable=True)])
    run(ops)
    assert ops.uncapturable() == {}
    ops = Ops([backend("strict")])
    assert ops.uncapturable() == {}
    run(ops)
    reason = "its back end strict cannot be captured in a CUDA graph"
    assert ops.uncapturable() == {"op act_and_mul": reason}


def test_the_reference_is_captured_where_the_op_says_so(backend):
    for op, uncapturable in ((ACT_AND_MUL, 0), (replace(ACT_AND_MUL, capturable=False), 1)):
        ops = Ops([])
        ops.bind(op, ARGUMENTS)
        assert len(ops.uncapturable()) == uncapturable


def test_a_warmup_needs_precompilable_back_ends_only(backend, monkeypatch):
    monkeypatch.setattr(compiling, "side_by_side", nullcontext)
    free, strict = backend("free"), backend("strict")
    ops = Ops([replace(free, precompilable=True)])
    bound = ops.bind(ACT_AND_MUL, ARGUMENTS)
    with ops.precompiling():
        assert ops.launches_suppressed
        assert bound(*OPERANDS) == "free"
    assert not ops.launches_suppressed
    ops = Ops([strict])
    bound = ops.bind(ACT_AND_MUL, ARGUMENTS)
    message = "op act_and_mul runs on strict"
    with pytest.raises(NotPrecompilableError, match=message), ops.precompiling():
        pass
    assert bound(*OPERANDS) == "strict"


def op_named(name):
    return replace(ACT_AND_MUL, name=name)


@pytest.fixture
def parts(backend):
    """``parts(supports)``: ops with back ends ``one`` and ``two`` each, a fused op of them with a
    back end ``one`` of that verdict, and the arguments of ``bind_fused``."""

    def make(supports=None, choose=None, second="two"):
        offered = []
        for op, names in (("a", ("one", "two")), ("b", ("one", second)), ("both", ("one",))):
            for priority, name in enumerate(reversed(names)):
                can = supports if op == "both" else None
                offered.append(replace(backend(name, priority, can), op=op))
        asked = [(op_named(name), ARGUMENTS) for name in "ab"]
        return Ops(offered, choose), (op_named("both"), ARGUMENTS, asked)

    return make


def test_a_fused_op_runs_on_the_back_end_of_all_of_its_parts(parts):
    ops, asked = parts()
    assert ops.bind_fused(*asked)(*OPERANDS) == "one"
    assert ops.decisions["both", "one"] == Decision("both", "one", ())


def test_it_does_not_run_if_a_part_has_another_back_end(parts):
    for choose in ({"a": "two"}, {"b": "two"}, {"a": "two", "b": "two"}):
        ops, asked = parts(choose=choose)
        assert ops.bind_fused(*asked) is None
        assert not any(op == "both" for op, _ in ops.decisions)


def test_nor_if_that_back_end_refuses(parts, caplog):
    caplog.set_level("INFO")
    ops, asked = parts(lambda arguments: Verdict(False, "too wide"))
    assert ops.bind_fused(*asked) is None
    assert ops.decisions["both", ITS_PARTS] == Decision("both", ITS_PARTS, (("one", "too wide"),))
    assert "op both runs on its parts; one refused: too wide" in caplog.text


def test_a_back_end_that_was_chosen_for_a_fused_op_runs_it(parts):
    ops, asked = parts(choose={"a": "two", "both": "one"})
    assert ops.bind_fused(*asked)(*OPERANDS) == "one"
    ops, asked = parts(lambda arguments: Verdict(False, "too wide"), {"both": "one"})
    with pytest.raises(UnsupportedModelError, match="too wide"):
        ops.bind_fused(*asked)
