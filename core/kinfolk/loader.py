"""Finds, imports and asks plugins, one at a time, so that a broken one breaks only itself.

A plugin is an entry point of group ``kinfolk`` whose value is a module. The module states
``KINFOLK_API`` and has ``@hookimpl`` functions. If any of that fails, the plugin's record says why
and the plugin provides nothing.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module, metadata
from itertools import groupby
from types import MappingProxyType, ModuleType
from typing import Any, Final, Generic, Literal, TypeVar

from kinfolk.checked import is_a
from kinfolk.descriptors import (
    REFERENCE,
    DrafterSpec,
    OpBackend,
    PolicySpec,
    QuantFormat,
    family_problem,
)
from kinfolk.door import ask, label, trace
from kinfolk.errors import PluginError, SettingsError
from kinfolk.guarded import GuardedCommand, guarded
from kinfolk.hookcheck import DISCOVERY, Implementation, implementations, problems
from kinfolk.hookspecs import API, PROJECT

logger = logging.getLogger("kinfolk.plugins")

GROUP: Final = PROJECT
CORE: Final = PROJECT
"""Name of the plugin that holds the core's own registrations; no other plugin may use it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The values of a discovery hook: their kind in messages, a check of a value, and the unique
    names of a value."""

    word: str
    problem: Callable[[Any], str] = lambda value: ""
    names: Callable[[Any], tuple[str, ...]] = lambda value: (value.name,)


def _backend_problem(value: object) -> str:
    if isinstance(value, OpBackend) and value.name == REFERENCE:
        return f"has name {REFERENCE!r}, which belongs to the op's own reference"
    return is_a(OpBackend)(value)


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "register_families": Kind("family", family_problem),
        "register_op_backends": Kind(
            "op back end", _backend_problem, lambda backend: (f"{backend.op}={backend.name}",)
        ),
        "register_quant_formats": Kind(
            "quant format",
            is_a(QuantFormat),
            lambda form: (form.name.upper(), f"type {form.ggml_type}"),
        ),
        "register_drafters": Kind("drafter", is_a(DrafterSpec)),
        "register_policies": Kind("policy", is_a(PolicySpec)),
        "register_commands": Kind("command"),
    }
)
"""By hook. Descriptors have checked their own fields when they were built."""

Status = Literal["ok", "failed", "conflict", "skipped"]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Provided(Generic[T_co]):
    """A value that ``plugin`` registered; ``source`` names the plugin in messages."""

    value: T_co
    plugin: str
    source: str


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One plugin: its origin, its status, and the values it provides, by hook.

    ``hooks`` are the hooks it implements, ``reason`` says why the status is not "ok", ``trace``
    holds the traceback of an exception that the plugin raised.
    """

    name: str
    module: str
    distribution: str = ""
    version: str = ""
    status: Status = "ok"
    reason: str = ""
    hooks: tuple[str, ...] = ()
    trace: str = field(default="", repr=False)
    provided: Mapping[str, tuple[Provided[Any], ...]] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> str:
        """The plugin in messages."""
        origin = " ".join(filter(None, (self.distribution, self.version)))
        return f"plugin {self.name!r}" + (f" ({origin})" if self.distribution else "")


# -- finding --------------------------------------------------------------------------------------


def find(wanted: Sequence[str] | None) -> tuple[PluginRecord, ...]:
    """Records of all installed plugins, sorted by name; those to be loaded have status "ok".

    ``wanted``: names to load; ``None`` = all. Raises :class:`SettingsError` for a name that is not
    installed.
    """
    found = sorted(_installed(), key=lambda record: (record.name, record.distribution))
    groups = {name: list(group) for name, group in groupby(found, lambda record: record.name)}
    for name in wanted or ():
        if name not in groups:
            raise SettingsError(
                f"KINFOLK_PLUGINS names {name!r}, which is not installed; "
                f"installed plugins: {', '.join(groups) or 'none'}"
            )
    names: dict[str, str] = {}
    records = []
    for group in groups.values():
        for record in _same_name(group):
            selected = _selected(record, wanted, names.get(record.module, record.name))
            if selected.status == "ok":
                names[record.module] = record.name
            records.append(selected)
    return tuple(records)


def _installed() -> Iterator[PluginRecord]:
    """One record for each entry point. A distribution that another one shadows is not read.

    Read distribution by distribution: one unreadable file must not hide the plugins of the others.
    """
    for distribution in metadata.distributions():
        text = distribution.read_text("entry_points.txt")
        if text is None or f"[{GROUP}]" not in text:
            continue
        fields = distribution.metadata  # incomplete metadata gives None
        name, version = ((fields.get_all(key) or [""])[0] for key in ("Name", "Version"))
        if name and metadata.distribution(name).read_text("entry_points.txt") != text:
            continue
        try:
            points = list(distribution.entry_points.select(group=GROUP))
        except (TypeError, ValueError) as error:
            reason = f"its entry points cannot be read: {error}"
            yield PluginRecord(name, "", name, version, "failed", reason)
            continue
        for point in points:
            yield PluginRecord(point.name, point.value, name, version)


def _same_name(records: list[PluginRecord]) -> list[PluginRecord]:
    """One name, one module: several distributions of the same module are one plugin."""
    if len({record.module for record in records}) > 1:
        parties = " and ".join(f"{record.module} ({record.distribution})" for record in records)
        reason = f"{parties} use the name {records[0].name!r}; uninstall one of them"
        return [replace(record, status="conflict", reason=reason) for record in records]
    distributions, versions = (
        ", ".join(dict.fromkeys(getattr(record, key) for record in records))
        for key in ("distribution", "version")
    )
    return [replace(records[0], distribution=distributions, version=versions)]


def _selected(record: PluginRecord, wanted: Sequence[str] | None, first: str) -> PluginRecord:
    """The record, skipped if it is not to be loaded; ``first`` is loaded from the same module."""
    if wanted is not None and record.name not in wanted:
        return replace(record, status="skipped", reason="not named in KINFOLK_PLUGINS")
    if record.status == "ok" and record.name == CORE:
        reason = f"the name {CORE!r} belongs to the core; name the entry point after the plugin"
        return replace(record, status="conflict", reason=reason)
    if record.status == "ok" and record.name != first:
        reason = f"names the same module as plugin {first!r}"
        return replace(record, status="skipped", reason=reason)
    return record


# -- loading --------------------------------------------------------------------------------------


def load(record: PluginRecord, module: ModuleType | None = None) -> PluginRecord:
    """The record with what the plugin registers. Imports it unless ``module`` is given. Never
    raises."""

    def loaded() -> PluginRecord:
        plugin = _import(record.module) if module is None else module
        _check_api(plugin)
        if mistakes := problems(plugin):
            raise PluginError("; ".join(mistakes))
        found = implementations(plugin)
        provided = _collect(record, [one for one in found if one.hook in DISCOVERY])
        return replace(record, hooks=tuple(sorted({one.hook for one in found})), provided=provided)

    try:
        return ask("", "loading", loaded, passing=(PluginError,))
    except PluginError as error:
        return replace(record, status="failed", reason=str(error), trace=trace(error))


def _import(value: str) -> ModuleType:
    if not re.fullmatch(r"[\w.]+", value):
        raise PluginError(
            f"the entry point's value is {value!r}; it must name a module, without ':' or extras"
        )
    return ask("", f"importing {value}", lambda: import_module(value), passing=())


def _check_api(module: ModuleType) -> None:
    stated = getattr(module, "KINFOLK_API", None)
    if stated is None:
        raise PluginError(
            f"{module.__name__} states no KINFOLK_API; add the line KINFOLK_API = {API}"
        )
    if is_a(tuple[int, int])(stated):
        raise PluginError(f"KINFOLK_API is {stated!r}; it must be two ints, like {API}")
    if stated[0] != API[0] or stated[1] > API[1]:
        raise PluginError(
            f"needs plugin API {stated[0]}.{stated[1]}, this kinfolk has {API[0]}.{API[1]}; "
            f"install {'a newer' if stated > API else 'an older'} kinfolk, or a version of the "
            f"plugin for API {API[0]}.{API[1]}"
        )


def _collect(
    record: PluginRecord, found: Sequence[Implementation]
) -> Mapping[str, tuple[Provided[Any], ...]]:
    """Call each implementation on its own, and note who registered every value."""
    provided: dict[str, tuple[Provided[Any], ...]] = {}
    for implementation in found:
        hook, call = implementation.hook, partial(_registered, implementation)
        values = ask("", hook, call, passing=(PluginError,))
        names = Counter(name for value in values for name in KINDS[hook].names(value))
        for name, count in names.items():
            if count > 1:
                raise PluginError(f"{hook} returned the name {name!r} twice")
        # What fails in the core is no plugin's fault, and keeps its own errors.
        kept = values if record.name == CORE else [guarded(one, record.source) for one in values]
        items = tuple(Provided(value, record.name, record.source) for value in kept)
        provided[hook] = provided.get(hook, ()) + items
        logger.debug("%s: %s registered %d", record.source, hook, len(items))
    return provided


def _registered(implementation: Implementation) -> Sequence[Any]:
    """The values that one implementation registers, checked. Raises what the plugin raises."""
    hook, function = implementation.hook, implementation.function
    values = _commands(function) if hook == "register_commands" else function()
    if not isinstance(values, list | tuple):
        raise PluginError(f"{hook} returned {label(values)}; it must return a list")
    for index, value in enumerate(values):
        if problem := KINDS[hook].problem(value):
            raise PluginError(f"{hook} returned at place {index} {label(value)}, which {problem}")
    return values


def _commands(function: Callable[..., Any]) -> Sequence[GuardedCommand]:
    """The commands a plugin adds, collected in a group of its own: it cannot touch the others."""
    import click

    scratch = click.Group()
    function(*(scratch for _ in inspect.signature(function).parameters))
    for name, command in scratch.commands.items():
        if not (isinstance(name, str) and isinstance(command, click.Command)):
            raise PluginError(
                f"register_commands added {label(command)}, which is no click.Command"
            )
    return [GuardedCommand(name, command) for name, command in scratch.commands.items()]
