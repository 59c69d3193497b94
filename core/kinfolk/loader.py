"""Finds, imports and questions plugins, one at a time, so that a broken one breaks only itself.

A plugin is an entry point of group ``kinfolk`` whose value is a module. The module states
``KINFOLK_API`` and has ``@hookimpl`` functions. Whatever goes wrong with it ends in the ``reason``
of its record; what it registered up to then is dropped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module, metadata
from types import ModuleType
from typing import Any, Final, Generic, Literal, TypeVar

import pluggy

from kinfolk.descriptorcheck import CHECKS
from kinfolk.door import ask, label, trace
from kinfolk.errors import PluginError, SettingsError
from kinfolk.guarded import GuardedCommand, guarded
from kinfolk.hookcheck import implementations, problems
from kinfolk.hookspecs import API, PROJECT, DiscoveryHooks

logger = logging.getLogger("kinfolk.plugins")

GROUP: Final = PROJECT
CORE: Final = PROJECT
"""Name of the plugin that holds the core's own registrations; no other plugin may use it."""

Status = Literal["ok", "failed", "conflict", "skipped"]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Provided(Generic[T_co]):
    """Something registered, stamped with who brought it."""

    value: T_co
    plugin: str
    distribution: str
    version: str

    @property
    def source(self) -> str:
        """Who brought it, for messages."""
        return _source(self.plugin, self.distribution, self.version)


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """What became of one plugin.

    ``hooks`` are the hooks it answers, ``reason`` says why the status is not "ok", ``trace`` holds
    the traceback of an exception that the plugin raised.
    """

    name: str
    module: str
    distribution: str
    version: str
    status: Status = "ok"
    reason: str = ""
    hooks: tuple[str, ...] = ()
    trace: str = field(default="", repr=False)

    @property
    def source(self) -> str:
        return _source(self.name, self.distribution, self.version)


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin's record and what it registered, by hook; nothing unless the record is "ok"."""

    record: PluginRecord
    provided: Mapping[str, tuple[Provided[Any], ...]] = field(default_factory=dict)


def _source(plugin: str, distribution: str, version: str) -> str:
    if not distribution:
        return f"plugin {plugin!r}"
    return f"plugin {plugin!r} ({' '.join(filter(None, (distribution, version)))})"


# -- finding --------------------------------------------------------------------------------------


def find(wanted: Sequence[str] | None) -> tuple[PluginRecord, ...]:
    """Records of all installed plugins, sorted by name; those to be loaded have status "ok".

    ``wanted``: names to load; ``None`` = all. Raises :class:`SettingsError` for a name that is not
    installed.
    """
    found = sorted(_installed(), key=lambda record: (record.name, record.distribution))
    names = sorted({record.name for record in found})
    for name in wanted or ():
        if name not in names:
            raise SettingsError(
                f"KINFOLK_PLUGINS names {name!r}, which is not installed; "
                f"installed plugins: {', '.join(names) or 'none'}"
            )
    records = [
        record for name in names for record in _same_name([r for r in found if r.name == name])
    ]
    return tuple(_selected(record, wanted) for record in _once_per_module(records))


def _installed() -> Iterator[PluginRecord]:
    """One record for each entry point. A distribution that another one shadows is not read.

    Read distribution by distribution: one unreadable file must not hide the plugins of the others.
    """
    for distribution in metadata.distributions():
        text = distribution.read_text("entry_points.txt")
        if text is None or f"[{GROUP}]" not in text:
            continue
        name, version = _named(distribution)
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


def _named(distribution: metadata.Distribution) -> tuple[str, str]:
    """Name and version, empty where the metadata is incomplete."""
    fields = distribution.metadata
    name, version = ((fields.get_all(key) or [""])[0] for key in ("Name", "Version"))
    return name, version


def _same_name(records: list[PluginRecord]) -> list[PluginRecord]:
    """One name, one module: several distributions of the same module are one plugin."""
    values = {record.module for record in records}
    if len(values) > 1:
        parties = " and ".join(f"{record.module} ({record.distribution})" for record in records)
        reason = f"{parties} use the name {records[0].name!r}; uninstall one of them"
        return [replace(record, status="conflict", reason=reason) for record in records]
    first = records[0]
    if len(records) == 1:
        return [first]
    names = ", ".join(dict.fromkeys(record.distribution for record in records))
    versions = ", ".join(dict.fromkeys(record.version for record in records))
    return [replace(first, distribution=names, version=versions)]


def _once_per_module(records: list[PluginRecord]) -> Iterator[PluginRecord]:
    first: dict[str, str] = {}
    for record in records:
        if record.status == "ok" and record.module in first:
            reason = f"names the same module as plugin {first[record.module]!r}"
            yield replace(record, status="skipped", reason=reason)
            continue
        if record.status == "ok":
            first[record.module] = record.name
        yield record


def _selected(record: PluginRecord, wanted: Sequence[str] | None) -> PluginRecord:
    if wanted is not None and record.name not in wanted:
        return replace(record, status="skipped", reason="not named in KINFOLK_PLUGINS")
    if record.status == "ok" and record.name == CORE:
        reason = f"the name {CORE!r} belongs to the core; name the entry point after the plugin"
        return replace(record, status="conflict", reason=reason)
    return record


# -- loading --------------------------------------------------------------------------------------


def load(record: PluginRecord, module: ModuleType | None = None) -> LoadedPlugin:
    """Import a plugin (unless ``module`` is given) and collect all it registers. Never raises."""
    try:
        return ask("", "loading", partial(_loaded, record, module), passing=(PluginError,))
    except PluginError as error:
        failed = replace(record, status="failed", reason=str(error), trace=trace(error))
        return LoadedPlugin(failed)


def _loaded(record: PluginRecord, module: ModuleType | None) -> LoadedPlugin:
    if module is None:
        module = _import(record.module)
    _check_api(module)
    hooks = _check_hooks(module)
    return LoadedPlugin(replace(record, hooks=hooks), _collect(record, module))


def _import(value: str) -> ModuleType:
    if not re.fullmatch(r"[\w.]+", value):
        raise PluginError(
            f"the entry point's value is {value!r}; it must name a module, without ':' or extras"
        )
    return ask("", f"importing {value}", partial(import_module, value), passing=())


def _check_api(module: ModuleType) -> None:
    stated = getattr(module, "KINFOLK_API", None)
    if stated is None:
        raise PluginError(
            f"{module.__name__} states no KINFOLK_API; add the line KINFOLK_API = {API}"
        )
    if not (isinstance(stated, tuple) and len(stated) == 2 and all(type(n) is int for n in stated)):
        raise PluginError(f"KINFOLK_API is {stated!r}; it must be two ints, like {API}")
    if stated[0] != API[0] or stated[1] > API[1]:
        raise PluginError(
            f"needs plugin API {stated[0]}.{stated[1]}, this kinfolk has {API[0]}.{API[1]}; "
            f"install {'a newer' if stated > API else 'an older'} kinfolk, or a version of the "
            f"plugin for API {API[0]}.{API[1]}"
        )


def _check_hooks(module: ModuleType) -> tuple[str, ...]:
    found = problems(module)
    if found:
        raise PluginError("; ".join(found))
    return tuple(sorted({implementation.hook for implementation in implementations(module)}))


def _collect(record: PluginRecord, module: ModuleType) -> Mapping[str, tuple[Provided[Any], ...]]:
    """Call each implementation on its own, and stamp everything that it returns."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DiscoveryHooks)
    try:
        manager.register(module, name=record.name)
    except pluggy.PluginValidationError as error:  # what our own checks did not foresee
        raise PluginError(str(error)) from error
    provided: dict[str, tuple[Provided[Any], ...]] = {}
    for caller in manager.get_hookcallers(module) or ():
        values: list[Any] = []
        for implementation in caller.get_hookimpls():
            call = partial(_call, record, caller.name, implementation)
            values += ask("", caller.name, call, passing=(PluginError,))
        _check_distinct(caller.name, values)
        logger.debug("%s: %s brought %d", record.source, caller.name, len(values))
        provided[caller.name] = tuple(
            Provided(_guarded(value, record), record.name, record.distribution, record.version)
            for value in values
        )
    return provided


def _guarded(value: Any, record: PluginRecord) -> Any:
    """What fails in the core is no plugin's fault, and keeps its own errors."""
    return value if record.name == CORE else guarded(value, record.source)


def _call(record: PluginRecord, hook: str, implementation: pluggy.HookImpl) -> Sequence[Any]:
    """What one implementation registers, checked. May raise whatever the plugin raises."""
    if hook == "register_commands":
        return _commands(record, implementation)
    values: object = implementation.function()
    if not isinstance(values, list | tuple):
        raise PluginError(f"{hook} returned {label(values)}; it must return a list")
    for index, value in enumerate(values):
        problem = CHECKS[hook](value)
        if problem:
            raise PluginError(f"{hook} returned at place {index} {label(value)}, which {problem}")
    return values


def _commands(record: PluginRecord, implementation: pluggy.HookImpl) -> Sequence[Any]:
    """The commands a plugin adds, collected in a group of its own: it cannot touch the others."""
    import click

    scratch = click.Group()
    implementation.function(*(scratch for _ in implementation.argnames))
    for name, command in scratch.commands.items():
        if not (isinstance(name, str) and isinstance(command, click.Command)):
            raise PluginError(
                f"register_commands added {label(command)}, which is no click.Command"
            )
    return [
        GuardedCommand(name, command, record.source, bool(command.hidden))
        for name, command in scratch.commands.items()
    ]


def _check_distinct(hook: str, values: Sequence[Any]) -> None:
    seen: set[object] = set()
    for value in values:
        name = (getattr(value, "op", ""), value.name)
        if name in seen:
            raise PluginError(f"{hook} returned the name {value.name!r} twice")
        seen.add(name)
