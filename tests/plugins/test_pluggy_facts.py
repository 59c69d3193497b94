"""Facts about pluggy that our loader is built on or around; they hold for 1.6 and 1.7.

A new pluggy that changes one of them shows up here before it shows up in a plugin.
"""

import pluggy
import pytest

spec, impl = pluggy.HookspecMarker("facts"), pluggy.HookimplMarker("facts")


class Specs:
    @spec
    def collect(self, argument):
        """Broadcast."""

    @spec(firstresult=True)
    def choose(self, argument):
        """First result."""


@pytest.fixture
def manager():
    manager = pluggy.PluginManager("facts")
    manager.add_hookspecs(Specs)
    return manager


def answering(value):
    class Plugin:
        @impl
        def collect(self):
            return value

        @impl
        def choose(self):
            return value

    return Plugin()


def test_the_plugin_registered_last_is_asked_first(manager):
    for value in (1, 2, 3):
        manager.register(answering(value))
    assert manager.hook.collect(argument=0) == [3, 2, 1]
    assert manager.hook.choose(argument=0) == 3


def test_none_asks_the_next_and_other_falsy_values_do_not(manager):
    manager.register(answering(1))
    manager.register(answering(None))
    assert manager.hook.choose(argument=0) == 1
    manager.register(answering(0))
    assert manager.hook.choose(argument=0) == 0


def test_one_raising_implementation_aborts_the_whole_broadcast(manager):
    class Raises:
        @impl
        def collect(self):
            raise OSError("gone")

    manager.register(Raises())
    manager.register(answering(1))
    with pytest.raises(OSError, match="gone"):
        manager.hook.collect(argument=0)


def test_a_misspelt_hook_is_accepted_without_a_word(manager):
    class Misspelt:
        @impl
        def colect(self): ...

    manager.register(Misspelt())
    with pytest.raises(pluggy.PluginValidationError):
        manager.check_pending()


def test_plugins_that_compare_equal_are_refused_as_one(manager):
    class Equal:
        def __eq__(self, other):
            return True

        __hash__ = None

    manager.register(Equal(), "one")
    with pytest.raises(ValueError, match="already registered"):
        manager.register(Equal(), "two")


def test_coroutines_and_generators_are_handed_out_as_answers(manager):
    class Generator:
        @impl
        def choose(self):
            yield 1

    manager.register(Generator())
    assert list(manager.hook.choose(argument=0)) == [1]


def test_an_implementation_may_leave_out_arguments_but_not_invent_them(manager):
    class Invents:
        @impl
        def choose(self, arguments): ...

    with pytest.raises(pluggy.PluginValidationError, match="arguments"):
        manager.register(Invents())


def test_a_function_on_an_instance_counts_with_the_arguments_of_what_it_wraps(manager):
    class Plugin:
        def method(self, argument): ...

    class StandIn: ...

    def call(*arguments):
        return arguments

    call.__wrapped__ = Plugin().method
    stand_in = StandIn()
    stand_in.choose = impl(call)
    manager.register(stand_in)
    assert manager.hook.choose(argument=7) == (7,)


def test_wrappers_surround_all_others_whatever_the_order(manager):
    class Wrapper:
        @impl(wrapper=True)
        def choose(self):
            value = yield
            return value * 10

    manager.register(Wrapper())
    manager.register(answering(1))
    assert manager.hook.choose(argument=0) == 10


def test_implementations_can_be_called_one_at_a_time_with_their_origin(manager):
    manager.register(answering(1), "one")
    manager.register(answering(2), "two")
    found = {one.plugin_name: one.function() for one in manager.hook.collect.get_hookimpls()}
    assert found == {"one": 1, "two": 2}
    assert all(one.argnames == () for one in manager.hook.collect.get_hookimpls())
