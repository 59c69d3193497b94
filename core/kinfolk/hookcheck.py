"""What is wrong with a hook implementation, found before it is called.

pluggy accepts a misspelt hook without a word, drops an argument that has a default (up to 1.6), and
returns the coroutine of an ``async`` hook as its answer. These would be silent failures, so all of
them are refused here.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Final

from kinfolk.hookspecs import PROJECT, DiscoveryHooks, ModelHooks

Arguments = Mapping[str, tuple[str, ...]]


def _arguments_of(specs: type) -> Arguments:
    return MappingProxyType(
        {
            name: tuple(inspect.signature(function).parameters)[1:]
            for name, function in vars(specs).items()
            if hasattr(function, f"{PROJECT}_spec")
        }
    )


DISCOVERY: Final = _arguments_of(DiscoveryHooks)
"""Arguments of each discovery hook."""

MODEL: Final = _arguments_of(ModelHooks)
"""Arguments of each model hook."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """A callable marked with ``@hookimpl``: the hook it answers and the marker's options."""

    hook: str
    attribute: str
    function: Callable[..., Any]
    options: Mapping[str, Any]

    @property
    def wraps(self) -> bool:
        return bool(self.options.get("wrapper"))


def implementations(holder: object) -> tuple[Implementation, ...]:
    """The marked callables of a module or object, by attribute name. Evaluates no property."""
    return tuple(
        Implementation(options["specname"] or name, name, getattr(holder, name), options)
        for name, static, options in _marked(holder)
        if _is_function(static)
    )


def problems(holder: object) -> tuple[str, ...]:
    """Everything that keeps the hooks of ``holder`` from being used; empty when all is well.

    A module is held to the discovery hooks, any other object to the model hooks.
    """
    specs = DISCOVERY if isinstance(holder, ModuleType) else MODEL
    marked = {name: static for name, static, _ in _marked(holder)}
    found = [
        f"{name} is marked with @hookimpl but is a {type(static).__name__}, "
        "not a function or method"
        for name, static in marked.items()
        if not _is_function(static)
    ]
    found += filter(None, (_problem(one, specs) for one in implementations(holder)))
    found += (
        f"{name} has the name of a hook but is not marked with @hookimpl"
        for name in specs
        if name not in marked and _is_function(inspect.getattr_static(holder, name, None))
    )
    return tuple(found)


def _marked(holder: object) -> Iterator[tuple[str, object, Mapping[str, Any]]]:
    for name in dir(holder):
        static = inspect.getattr_static(holder, name, None)
        inner = getattr(static, "__func__", static)  # of a static or class method
        options = getattr(static, f"{PROJECT}_impl", getattr(inner, f"{PROJECT}_impl", None))
        if isinstance(options, dict):
            yield name, static, options


def _is_function(static: object) -> bool:
    return isinstance(static, FunctionType | MethodType | staticmethod | classmethod)


def _problem(implementation: Implementation, specs: Arguments) -> str:
    """The first thing wrong with one implementation, or the empty string."""
    options, hook, function = implementation.options, implementation.hook, implementation.function
    if hook not in specs:
        is_other = options.get("optionalhook") and hook not in (*DISCOVERY, *MODEL)
        return "" if is_other else _unknown(hook, specs)
    generates = inspect.isgeneratorfunction(function)
    mistakes = {
        f"{hook} uses tryfirst or trylast; the order of plugins is the host's to decide": (
            options.get("tryfirst") or options.get("trylast")
        ),
        f"{hook} uses hookwrapper=True; write it with wrapper=True": options.get("hookwrapper"),
        f"{hook} is a wrapper; what other plugins register cannot be wrapped": (
            implementation.wraps and specs is DISCOVERY
        ),
        f"{hook} is async; hooks are called without an event loop, write a plain function": (
            inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        ),
        f"{hook} is marked as a wrapper but never yields": implementation.wraps and not generates,
        f"{hook} is a generator; return a list instead of yielding": (
            generates and not implementation.wraps
        ),
    }
    found = next((message for message, is_wrong in mistakes.items() if is_wrong), "")
    return found or _wrong_arguments(implementation, specs[hook])


def _unknown(hook: str, specs: Arguments) -> str:
    if hook in MODEL:
        return (
            f"{hook} is a model hook; put it on the object that Family.hooks or "
            "PolicySpec.create returns, not in the plugin's module"
        )
    if hook in DISCOVERY:
        return f"{hook} is a discovery hook; put it in the plugin's module"
    close = difflib.get_close_matches(hook, (*DISCOVERY, *MODEL), n=1)
    hint = f"did you mean {close[0]}?" if close else f"the hooks are {', '.join(specs)}"
    return f"there is no hook {hook}; {hint}"


def _wrong_arguments(implementation: Implementation, allowed: tuple[str, ...]) -> str:
    shape = f"{implementation.hook}({', '.join(allowed)})"
    for name, parameter in inspect.signature(implementation.function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return f"{shape} takes {parameter}, which a hook never receives; name the arguments"
        if parameter.kind is parameter.KEYWORD_ONLY:
            return f"{shape} takes {name!r} by keyword only, and hooks are called by position"
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            return f"{shape} has no argument {name!r}{hint}"
        if parameter.default is not parameter.empty:
            return f"{shape} gives {name!r} a default, which would replace the value passed"
    return ""
