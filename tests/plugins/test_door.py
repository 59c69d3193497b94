"""Exceptions and wrong answers of a plugin carry its name, and other plugins go on."""

import itertools
import json

import pytest

from kinfolk.cli.signals import Terminated
from kinfolk.door import ask, ask_each, behind, cause, label, trace
from kinfolk.errors import KinfolkError, PluginError, SettingsError


def raising(error):
    def call(*arguments):
        raise error

    return call


def no_int(value):
    return "" if isinstance(value, int) else "is no int"


def test_an_answer_that_fits_is_handed_on():
    assert ask("plugin 'p'", "method", lambda: 7, no_int) == 7


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), RecursionError(), StopIteration()])
def test_whatever_is_raised_names_plugin_method_and_line_and_is_kept(error):
    with pytest.raises(PluginError) as caught:
        ask("plugin 'p'", "method", raising(error))
    said = str(caught.value)
    assert said.startswith(f"plugin 'p': method failed: {type(error).__name__}")
    assert f"({__file__}, line {raising.__code__.co_firstlineno + 2})" in said
    assert caught.value.__cause__ is error
    assert trace(caught.value).startswith("Traceback")


def reading():
    return json.loads("{")


def test_the_line_is_the_plugins_where_what_it_calls_fails():
    with pytest.raises(PluginError) as caught:
        ask("plugin 'p'", "method", reading)
    assert f"({__file__}, line {reading.__code__.co_firstlineno + 1})" in str(caught.value)


def test_of_a_mistake_in_the_grammar_the_line_is_that_of_the_mistake():
    with pytest.raises(PluginError, match=r"\(plugin\.py, line 2\)$"):
        ask("plugin 'p'", "importing it", lambda: compile("x = 1\ndef (:", "plugin.py", "exec"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()])
def test_what_stops_the_program_from_outside_passes(error):
    with pytest.raises(type(error)):
        ask("plugin 'p'", "method", raising(error), passing=())


@pytest.mark.parametrize("error", [SettingsError("no"), MemoryError()])
def test_a_refusal_passes_where_one_may_refuse(error):
    with pytest.raises(type(error)) as caught:
        ask("plugin 'p'", "method", raising(error))
    assert caught.value is error
    with pytest.raises(PluginError, match=f"plugin 'p': method failed: {type(error).__name__}"):
        ask("plugin 'p'", "method", raising(error), passing=())


def test_an_answer_that_does_not_fit_is_shown():
    with pytest.raises(PluginError) as caught:
        ask("plugin 'p'", "method", lambda: "7", no_int)
    assert str(caught.value) == "plugin 'p': method returned '7', which is no int"
    assert trace(caught.value) == ""


class Unreadable(Exception):
    def __str__(self):
        raise ValueError


class Unnamed:
    @property
    def name(self):
        raise OSError("no name")


def test_what_cannot_be_shown_breaks_nobody():
    with pytest.raises(PluginError, match="method failed: Unreadable: <exception str"):
        ask("plugin 'p'", "method", raising(Unreadable()))
    with pytest.raises(PluginError, match="method failed: OSError: no name"):
        ask("plugin 'p'", "method", Unnamed, no_int)


def test_a_function_behind_the_door_takes_what_it_took():
    def power(base, exponent=2):
        return base**exponent

    asking = behind("plugin 'p'", "power", power, no_int)
    assert asking(3) == 9
    assert asking(2, exponent=3) == 8
    with pytest.raises(PluginError, match="plugin 'p': power failed: TypeError"):
        asking("text")
    with pytest.raises(PluginError, match=r"plugin 'p': power returned 2\.25, which is no int"):
        asking(1.5)


def test_those_that_fail_are_left_out_with_a_warning(caplog):
    providers = [raising(PluginError("plugin 'p': method failed")), lambda: 1, lambda: 2]
    answers = ask_each(providers, lambda provider: provider())
    assert [answer for _, answer in answers] == [1, 2]
    assert [record.message for record in caplog.records] == [
        "plugin 'p': method failed; it is left out"
    ]


def test_nobody_is_asked_who_is_not_needed(caplog):
    providers = [lambda: 1, raising(PluginError("not needed"))]
    assert list(itertools.islice(ask_each(providers, lambda provider: provider()), 1)) == [
        (providers[0], 1)
    ]
    assert not caplog.records


def test_only_what_came_through_the_door_is_left_out():
    """An error of the core is not blamed on a plugin."""
    with pytest.raises(ZeroDivisionError):
        list(ask_each([0], lambda provider: 1 // provider))
    with pytest.raises(KinfolkError):
        list(ask_each([0], raising(KinfolkError("no"))))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "None"), ("x", "'x'"), (int, "the class int"), ([], "an object of type list")],
)
def test_a_label_is_short(value, shown):
    assert label(value) == shown


def test_a_cause_is_one_line():
    assert cause(RuntimeError("two\nlines")) == "RuntimeError: two lines"
    assert cause(RuntimeError()) == "RuntimeError"


def test_a_signal_that_ends_the_program_is_no_fault_of_a_plugin():
    def terminated():
        raise Terminated

    with pytest.raises(Terminated):
        ask("who", "what", terminated)
