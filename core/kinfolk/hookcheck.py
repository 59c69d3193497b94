"""What is wrong with a hook implementation, said before it is ever called.

pluggy accepts a misspelt hook without a word, drops an argument that has a default (up to 1.6), and
hands out the coroutine of an ``async`` hook as if it were the answer. Each of these would be a
silent failure of somebody's plugin, so all of them are refused here.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Final

from kinfolk.hookspecs import PROJECT, DiscoveryHooks, ModelHooks


def _arguments_of(specs: type) -> Mapping[str, tuple[str, ...]]:
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
        return bool(self.options.get("wrapper") or self.options.get("hookwrapper"))


def implementations(holder: object) -> tuple[Implementation, ...]:
    """The marked callables of a module or object, by attribute name. Evaluates no property."""
    return tuple(
        Implementation(
            options.get("specname") or attribute, attribute, getattr(holder, attribute), options
        )
        for attribute, static, options in _marked(holder)
        if _is_plain(static)
    )


def problems(holder: object) -> tuple[str, ...]:
    """Everything that keeps the hooks of ``holder`` from being used; empty when all is well.

    A module is held to the discovery hooks, any other object to the model hooks.
    """
    specs = DISCOVERY if isinstance(holder, ModuleType) else MODEL
    found = [
        f"{attribute} is marked with @hookimpl but is a {type(static).__name__}, "
        "not a function or method"
        for attribute, static, _ in _marked(holder)
        if not _is_plain(static)
    ]
    for implementation in implementations(holder):
        problem = _problem(implementation, specs)
        if problem:
            found.append(problem)
    return tuple(found) + _forgotten(holder, specs)


def _marked(holder: object) -> Iterator[tuple[str, object, Mapping[str, Any]]]:
    for attribute in dir(holder):
        static = inspect.getattr_static(holder, attribute, None)
        options = getattr(static, f"{PROJECT}_impl", None)
        if options is None:
            inner = getattr(static, "__func__", None)
            options = getattr(inner, f"{PROJECT}_impl", None)
        if isinstance(options, dict):
            yield attribute, static, options


def _is_plain(static: object) -> bool:
    return isinstance(static, FunctionType | MethodType | staticmethod | classmethod)


def _forgotten(holder: object, specs: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Functions that have the name of a hook and no marker: they would never be called."""
    marked = {attribute for attribute, _, _ in _marked(holder)}
    return tuple(
        f"{name} has the name of a hook but is not marked with @hookimpl"
        for name in specs
        if name not in marked and _is_plain(inspect.getattr_static(holder, name, None))
    )


def _problem(implementation: Implementation, specs: Mapping[str, tuple[str, ...]]) -> str:
    """The first thing wrong with one implementation, or the empty string."""
    options = implementation.options
    hook = implementation.hook
    if hook not in specs:
        return "" if options.get("optionalhook") and hook not in ALL else _unknown(hook, specs)
    if options.get("tryfirst") or options.get("trylast"):
        return f"{hook} uses tryfirst or trylast; the order of plugins is the host's to decide"
    if options.get("hookwrapper"):
        return f"{hook} uses hookwrapper=True; write it with wrapper=True"
    if options.get("wrapper") and specs is DISCOVERY:
        return f"{hook} is a wrapper; what other plugins register cannot be wrapped"
    return _wrong_kind(implementation) or _wrong_arguments(implementation, specs[hook])


ALL: Final = MappingProxyType({**DISCOVERY, **MODEL})


def _unknown(hook: str, specs: Mapping[str, tuple[str, ...]]) -> str:
    if hook in MODEL:
        return (
            f"{hook} is a model hook; put it on the object that Family.hooks or "
            "PolicySpec.create returns, not in the plugin's module"
        )
    if hook in DISCOVERY:
        return f"{hook} is a discovery hook; put it in the plugin's module"
    close = difflib.get_close_matches(hook, ALL, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the hooks are {', '.join(specs)}"
    return f"there is no hook {hook}; {hint}"


def _wrong_kind(implementation: Implementation) -> str:
    function, hook = implementation.function, implementation.hook
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return f"{hook} is async; hooks are called without an event loop, write a plain function"
    generates = inspect.isgeneratorfunction(function)
    if implementation.wraps and not generates:
        return f"{hook} is marked as a wrapper but never yields"
    if generates and not implementation.wraps:
        return f"{hook} is a generator; return a list instead of yielding"
    return ""


def _wrong_arguments(implementation: Implementation, allowed: tuple[str, ...]) -> str:
    shape = f"{implementation.hook}({', '.join(allowed)})"
    for parameter in inspect.signature(implementation.function).parameters.values():
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            return f"{shape} takes {stars}{name}, which a hook never receives; name the arguments"
        if parameter.kind is parameter.KEYWORD_ONLY:
            return f"{shape} takes {name!r} by keyword only, and hooks are called by position"
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            return f"{shape} has no argument {name!r}{hint}"
        if parameter.default is not parameter.empty:
            return f"{shape} gives {name!r} a default, which would replace the value passed"
    return ""
