"""Which back end runs an op, and what is said about those that did not."""

from __future__ import annotations

import inspect
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from kinfolk.descriptors import OpBackend, Verdict, resolve
from kinfolk.errors import PluginError, SettingsError, UnsupportedModelError
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk.ops.table import Decision, NotPrecompilableError, Ops
from kinfolk_kernels import compiling
from kinfolk_kernels.verdict import Verdict as KernelVerdict


@pytest.fixture
def backend(monkeypatch):
    """``backend(name, priority, supports)``: a back end of silu_mul that answers its own name."""
    module = ModuleType("toy_backends")
    monkeypatch.setitem(sys.modules, "toy_backends", module)

    def make(name, priority=0, supports=None, device=""):
        setattr(module, name, lambda *args: name)
        if supports is not None:
            setattr(module, f"{name}_can", supports)
        can = "" if supports is None else f"toy_backends:{name}_can"
        return OpBackend("silu_mul", name, f"toy_backends:{name}", can, priority, device)

    return make


def run(ops):
    return ops.silu_mul(torch.ones(2, 3), torch.ones(2, 3))


def test_the_highest_priority_is_asked_first(backend):
    ops = Ops([backend("low", -1), backend("high", 7), backend("middle", 3)])
    assert ops.backends("silu_mul") == ("high", "middle", "low")
    assert run(ops) == "high"


def test_equals_are_asked_in_the_order_they_were_registered(backend):
    assert run(Ops([backend("first"), backend("second")])) == "first"


def test_an_option_chooses_whatever_the_priority(backend):
    ops = Ops([backend("low"), backend("high", 7)], {"silu_mul": "low"})
    assert ops.backends("silu_mul") == ("low",)
    assert run(ops) == "low"


def test_an_unknown_option_is_an_error_that_lists_the_names(backend):
    with pytest.raises(SettingsError, match=r"'silu_mul' has no back end 'fast' .*high, low"):
        Ops([backend("low"), backend("high", 7)], {"silu_mul": "fast"})


def test_an_unknown_op_is_an_error_that_lists_the_ops(backend):
    with pytest.raises(SettingsError, match=r"op 'silu' has no back end 'low' .*'silu_mul'"):
        Ops([backend("low")], {"silu": "low"})


def test_one_for_another_device_is_asked_only_by_name(backend):
    backends = [backend("plain"), backend("fast", 9, device="cuda")]
    assert Ops(backends).backends("silu_mul") == ("plain",)
    assert Ops(backends, device="cuda").backends("silu_mul") == ("fast", "plain")
    assert run(Ops(backends, {"silu_mul": "fast"})) == "fast"


# -- refusals -------------------------------------------------------------------------------------


def no(reason):
    return lambda *args: Verdict(False, reason)


def test_a_refusal_is_kept_with_its_reason_and_logged_once(backend, caplog):
    caplog.set_level("INFO")
    ops = Ops([backend("plain"), backend("fast", 9, no("needs 128 columns, not 3"))])
    assert [run(ops), run(ops)] == ["plain", "plain"]
    refused = (("fast", "needs 128 columns, not 3"),)
    assert ops.decisions == {("silu_mul", "plain"): Decision("silu_mul", "plain", refused)}
    assert caplog.text.count("runs on plain; fast refused: needs 128 columns, not 3") == 1


def test_a_back_end_is_asked_about_the_arguments_of_each_call(backend):
    def even(gate, up):
        return Verdict(gate.shape[0] % 2 == 0, "odd rows")

    ops = Ops([backend("plain"), backend("fast", 9, even)])
    answers = [ops.silu_mul(torch.ones(n, 3), torch.ones(n, 3)) for n in (1, 2, 3)]
    assert answers == ["plain", "fast", "plain"]
    assert set(ops.decisions) == {("silu_mul", "plain"), ("silu_mul", "fast")}


@pytest.mark.parametrize("verdict", [None, False, Verdict(False)])
def test_whoever_does_not_say_yes_says_no(backend, verdict):
    ops = Ops([backend("plain"), backend("fast", 9, lambda *args: verdict)])
    assert run(ops) == "plain"
    assert ops.decisions["silu_mul", "plain"].refused == (("fast", "gave no reason"),)


def test_when_nobody_can_every_reason_is_given(backend):
    ops = Ops([backend("a", 0, no("too wide")), backend("b", 5, no("too long"))])
    with pytest.raises(UnsupportedModelError, match="'silu_mul': b: too long; a: too wide"):
        run(ops)


def test_the_chosen_one_is_not_replaced_when_it_refuses(backend):
    ops = Ops([backend("plain"), backend("fast", 9, no("too wide"))], {"silu_mul": "fast"})
    with pytest.raises(UnsupportedModelError, match="fast: too wide"):
        run(ops)


def test_an_op_without_back_ends_says_so():
    with pytest.raises(UnsupportedModelError, match="'silu_mul': none is installed"):
        run(Ops([]))


@pytest.mark.parametrize("reference", ["no_such_module:f", "toy_backends:no_such_name"])
def test_a_back_end_that_cannot_be_loaded_takes_nothing_down(backend, reference, caplog):
    broken = OpBackend("silu_mul", "broken", reference, priority=99)
    ops = Ops([backend("plain"), broken])
    assert [run(ops), run(ops)] == ["plain", "plain"]
    ((name, reason),) = ops.decisions["silu_mul", "plain"].refused
    assert name == "broken"
    assert reason.startswith("cannot be loaded: ")
    assert "no_such" in reason
    assert caplog.text.count("cannot be loaded") == 1


def test_an_error_in_a_back_end_is_not_covered_up(backend):
    def fails(*args):
        raise FloatingPointError("inside")

    broken = backend("fast", 9)
    sys.modules["toy_backends"].fast = fails
    with pytest.raises(FloatingPointError, match="inside"):
        run(Ops([backend("plain"), broken]))


# -- what others bring ----------------------------------------------------------------------------

OTHERS = "plugin 'p' (dist 1)"
WHO = f"back end 'fast' of op 'silu_mul' of {OTHERS}: "


@pytest.fixture
def foreign(backend):
    """``foreign(function, supports)``: a back end of somebody's plugin, asked before the others."""

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
        (7, "loading it returned an object of type tuple, which holds something that cannot be c"),
    ],
)
def test_a_plugins_back_end_that_fails_to_say_whether_it_can_is_asked_no_more(
    backend, foreign, caplog, supports, said
):
    ops = Ops([backend("plain"), foreign(lambda *arguments: "fast", supports)])
    assert [run(ops), run(ops)] == ["plain", "plain"]
    ((name, reason),) = ops.decisions["silu_mul", "plain"].refused
    assert name == "fast"
    assert reason.startswith(WHO + said)
    assert ops.broken == {("silu_mul", "fast"): reason}
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


def test_a_module_that_leaves_the_program_is_not_loaded(backend, foreign, monkeypatch):
    module = ModuleType("toy_leaves")
    module.__getattr__ = raising(SystemExit(3))
    monkeypatch.setitem(sys.modules, "toy_leaves", module)
    leaving = replace(foreign(len), function="toy_leaves:f")
    assert run(Ops([backend("plain"), leaving])) == "plain"


# -- what comes with kinfolk ----------------------------------------------------------------------


def ops_of_the_table():
    return [name for name, _ in inspect.getmembers(Ops, inspect.isfunction) if name[0] != "_"]


def test_every_op_has_a_reference_and_every_back_end_an_op():
    named = {backend.op for backend in OP_BACKENDS}
    assert named == set(ops_of_the_table()) - {
        "backends",
        "watched",
        "precompiling",
        "not_capturable",
    }
    for op in named:
        assert Ops(OP_BACKENDS).backends(op)[-1] == "reference"


EVERYWHERE = [backend for backend in OP_BACKENDS if backend.name in ("reference", "torch")]


@pytest.mark.parametrize("backend", EVERYWHERE, ids=lambda backend: f"{backend.op}-{backend.name}")
def test_back_ends_take_what_the_table_passes(backend):
    typed = list(inspect.signature(getattr(Ops, backend.op)).parameters)[1:]
    assert list(inspect.signature(resolve(backend.function)).parameters) == typed


def test_only_precompilable_back_ends_run_in_a_warmup(backend, monkeypatch):
    monkeypatch.setattr(compiling, "side_by_side", nullcontext)
    free, strict = backend("free"), backend("strict")
    ops = Ops([replace(free, precompilable=True)])
    with ops.precompiling():
        assert run(ops) == "free"
    ops = Ops([strict])
    with (
        pytest.raises(NotPrecompilableError, match="op silu_mul runs on strict"),
        ops.precompiling(),
    ):
        run(ops)
    assert run(ops) == "strict"
