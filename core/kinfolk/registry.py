"""What the installed plugins bring: built once, frozen, and passed to whoever needs it.

There is no global registry. A process builds one with :meth:`Registry.discover`, a test with
:meth:`Registry.build`; building twice has no side effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kinfolk.door import ask_each, trace
from kinfolk.errors import (
    FamilyConflictError,
    PluginError,
    SettingsError,
    UnknownArchitectureError,
    UnsupportedModelError,
)
from kinfolk.loader import CORE, LoadedPlugin, PluginRecord, Provided, find, load
from kinfolk.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from kinfolk.descriptors import DrafterSpec, OpBackend, PolicySpec, QuantFormat
    from kinfolk.guarded import GuardedCommand, GuardedFamily
    from kinfolk.settings import Settings

_BUILTIN: Final = "kinfolk.builtin"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of registration: its hook, its word in messages, and the names that must be unique."""

    hook: str
    word: str
    names: Callable[[Any], tuple[str, ...]]


_FAMILY: Final = _Kind("register_families", "family", lambda family: (family.name,))
_OP: Final = _Kind("register_op_backends", "op back end", lambda b: (f"{b.op}={b.name}",))
_FORMAT: Final = _Kind(
    "register_quant_formats",
    "quant format",
    lambda form: (form.name.upper(), f"type {form.ggml_type}"),
)
_DRAFTER: Final = _Kind("register_drafters", "drafter", lambda drafter: (drafter.name,))
_POLICY: Final = _Kind("register_policies", "policy", lambda policy: (policy.name,))
_COMMAND: Final = _Kind("register_commands", "command", lambda command: (command.name,))
_KINDS: Final = (_FAMILY, _OP, _FORMAT, _DRAFTER, _POLICY, _COMMAND)


@dataclass(frozen=True)
class Registry:
    """Records of all plugins, and what the good ones registered, by name.

    ``withdrawn`` maps a kind and name that several plugins claim to the claimants; such a name
    belongs to none of them.
    """

    records: tuple[PluginRecord, ...] = ()
    families: Mapping[str, Provided[GuardedFamily]] = field(default_factory=dict)
    op_backends: tuple[Provided[OpBackend], ...] = ()
    quant_formats: tuple[Provided[QuantFormat], ...] = ()
    drafters: Mapping[str, Provided[DrafterSpec]] = field(default_factory=dict)
    policies: Mapping[str, Provided[PolicySpec]] = field(default_factory=dict)
    commands: Mapping[str, Provided[GuardedCommand]] = field(default_factory=dict)
    withdrawn: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    # -- building

    @classmethod
    def discover(cls, settings: Settings, *, reserved_commands: Collection[str] = ()) -> Registry:
        """The installed plugins that ``settings.plugins`` allows, and the core's own.

        ``reserved_commands`` are names of the command line that no plugin can have. Raises
        :class:`PluginError` for a broken plugin only if ``settings.strict_plugins``, and then also
        for what :meth:`examined` finds.
        """
        loaded = [
            load(record) if record.status == "ok" else LoadedPlugin(record)
            for record in find(settings.plugins)
        ]
        registry = cls._merge([_load_builtin(), *loaded], reserved_commands)
        if settings.strict_plugins:
            registry.examined().check()
        return registry

    @classmethod
    def build(cls, plugins: Mapping[str, ModuleType], *, builtin: bool = True) -> Registry:
        """Exactly these modules, by plugin name, and the core's own unless ``builtin`` is off."""
        loaded = [
            load(PluginRecord(name, module.__name__, "", ""), module)
            for name, module in sorted(plugins.items())
        ]
        return cls._merge([_load_builtin(), *loaded] if builtin else loaded)

    @classmethod
    def _merge(cls, loaded: Iterable[LoadedPlugin], reserved: Collection[str] = ()) -> Registry:
        loaded = list(loaded)
        withdrawn: dict[tuple[str, str], tuple[Provided[Any], ...]] = {}
        kept: dict[str, list[Provided[Any]]] = {}
        for kind in _KINDS:
            brought = [item for plugin in loaded for item in plugin.provided.get(kind.hook, ())]
            clashes = _clashes(kind, brought, reserved if kind is _COMMAND else ())
            kept[kind.hook] = [item for item in brought if not _loses(kind, item, clashes)]
            withdrawn |= {(kind.word, name): items for name, items in clashes.items()}
        return cls(
            records=tuple(_with_conflicts(plugin.record, withdrawn) for plugin in loaded),
            families=_by_name(_FAMILY, kept),
            op_backends=tuple(kept[_OP.hook]),
            quant_formats=tuple(kept[_FORMAT.hook]),
            drafters=_by_name(_DRAFTER, kept),
            policies=_by_name(_POLICY, kept),
            commands=_by_name(_COMMAND, kept),
            withdrawn=MappingProxyType(
                {key: tuple(item.source for item in items) for key, items in withdrawn.items()}
            ),
        )

    # -- diagnosis

    def problems(self) -> tuple[str, ...]:
        """One line for each plugin that failed or is in conflict."""
        return tuple(
            f"{record.source}: {record.reason}"
            for record in self.records
            if record.status in ("failed", "conflict")
        )

    def examined(self) -> Registry:
        """The same, with records that tell what else fails: all families are asked what they state
        of themselves, and all commands for their line of help."""
        faults: dict[tuple[str, str], list[PluginError]] = {}
        brought: tuple[Provided[GuardedFamily | GuardedCommand], ...]
        brought = (*self.families.values(), *self.commands.values())
        for item in brought:
            faults.setdefault((item.plugin, item.distribution), []).extend(item.value.faults())
        return replace(
            self,
            records=tuple(
                _with_faults(record, faults.get((record.name, record.distribution), ()))
                for record in self.records
            ),
        )

    def check(self) -> None:
        """Raise :class:`PluginError` if any plugin failed or is in conflict."""
        problems = self.problems()
        if problems:
            raise PluginError("; ".join(problems))

    # -- lookups

    def bundled_model(self) -> Path | None:
        """The first model file that a family ships, by the names of their plugins."""
        families = (item.value for item in self.families.values())
        answers = ask_each(families, lambda family: family.bundled_model())
        return next((path for _, path in answers if path is not None), None)

    def family_for(
        self, architecture: str, override: str | None = None, *, drafter: bool = False
    ) -> GuardedFamily:
        """The family of a file by its exact ``general.architecture``, or the one of ``override``.

        ``drafter``: the file drafts for another model, so ``drafter_architectures`` count too.
        Raises :class:`UnknownArchitectureError`, :class:`FamilyConflictError` (several claims), or
        :class:`SettingsError` (``override`` is not installed, or leaves a file to a family that
        does not claim it while others do).
        """
        claims = [
            item
            for item in self.families.values()
            if architecture in item.value.architectures
            or (drafter and architecture in item.value.drafter_architectures)
        ]
        if override is not None:
            chosen = self._named(_FAMILY, self.families, override, "--model-family")
            if claims and chosen not in claims:
                names = " and ".join(repr(item.value.name) for item in claims)
                raise SettingsError(
                    f"--model-family {override}: the file's architecture is {architecture!r}, "
                    f"which {names} handles and {override!r} "
                    f"({', '.join(chosen.value.architectures)}) does not; leave the flag out"
                )
            return chosen.value
        if len(claims) == 1:
            return claims[0].value
        if claims:
            parties = " and ".join(f"{item.value.name!r} of {item.source}" for item in claims)
            raise FamilyConflictError(
                f"architecture {architecture!r} is claimed by the families {parties}; choose one "
                f"with --model-family {claims[0].value.name}"
            )
        raise self._unknown(architecture)

    def drafter(self, name: str) -> Provided[DrafterSpec]:
        """A drafter by name; :class:`SettingsError` if there is none."""
        return self._named(_DRAFTER, self.drafters, name, "--drafter")

    def policy(self, name: str) -> Provided[PolicySpec]:
        """A policy by name; :class:`SettingsError` if there is none."""
        return self._named(_POLICY, self.policies, name, "--policy")

    def _named(
        self, kind: _Kind, table: Mapping[str, Provided[T]], name: str, flag: str
    ) -> Provided[T]:
        if name in table:
            return table[name]
        claimants = self.withdrawn.get((kind.word, name))
        if claimants:
            raise SettingsError(
                f"{flag} {name}: the {kind.word} is registered by {' and by '.join(claimants)}; "
                "uninstall one of them or select plugins with KINFOLK_PLUGINS"
            )
        there = ", ".join(f"{item!r} ({table[item].source})" for item in sorted(table)) or "none"
        raise SettingsError(f"{flag} {name}: no such {kind.word}; installed: {there}")

    def _unknown(self, architecture: str) -> UnsupportedModelError:
        for item in self.families.values():
            if architecture in item.value.drafter_architectures:
                return UnsupportedModelError(
                    f"{architecture!r} is a drafter of family {item.value.name!r}: it speeds up "
                    "another model and cannot answer by itself"
                )
        there = ", ".join(
            f"{name} ({', '.join(item.value.architectures) or 'drafters only'})"
            for name, item in sorted(self.families.items())
        )
        message = (
            f"no installed family claims the architecture {architecture!r}; "
            f"installed families: {there or 'none'}"
        )
        if self.problems():
            message += f"; plugins that could not be used: {'; '.join(self.problems())}"
        return UnknownArchitectureError(
            f"{message}. A plugin can add it: 'kinfolk new-family NAME' writes one to start from, "
            "and the README.md in it says how to go on"
        )


def describe(registry: Registry) -> list[dict[str, Any]]:
    """Each plugin as plain data: what ``kinfolk plugins --json`` prints."""
    tables: dict[str, Iterable[Provided[Any]]] = {
        "families": registry.families.values(),
        "op_backends": registry.op_backends,
        "quant_formats": registry.quant_formats,
        "drafters": registry.drafters.values(),
        "policies": registry.policies.values(),
        "commands": registry.commands.values(),
    }
    kinds = dict(zip(tables, _KINDS, strict=True))
    return [
        {
            "name": record.name,
            "module": record.module,
            "distribution": record.distribution,
            "version": record.version,
            "status": record.status,
            "reason": record.reason,
            "trace": record.trace,
            "hooks": list(record.hooks),
            "provides": {
                kind: [
                    kinds[kind].names(item.value)[0]
                    for item in items
                    if (item.plugin, item.distribution) == (record.name, record.distribution)
                ]
                for kind, items in tables.items()
            },
        }
        for record in registry.records
    ]


def _load_builtin() -> LoadedPlugin:
    record = PluginRecord(CORE, _BUILTIN, "kinfolk", __version__)
    loaded = load(record, import_module(_BUILTIN))
    if loaded.record.status != "ok":
        raise PluginError(f"the core's own plugin is broken: {loaded.record.reason}")
    return loaded


def _clashes(
    kind: _Kind, brought: list[Provided[Any]], reserved: Collection[str]
) -> dict[str, tuple[Provided[Any], ...]]:
    """Names that more than one plugin claims, or that are reserved, with the claimants."""
    claims: dict[str, list[Provided[Any]]] = {}
    for item in brought:
        for name in kind.names(item.value):
            claims.setdefault(name, []).append(item)
    return {
        name: tuple(items) for name, items in claims.items() if len(items) > 1 or name in reserved
    }


def _loses(
    kind: _Kind, item: Provided[Any], clashes: Mapping[str, tuple[Provided[Any], ...]]
) -> bool:
    """The core keeps what it registers; between plugins nobody wins."""
    return item.plugin != CORE and any(name in clashes for name in kind.names(item.value))


def _with_conflicts(
    record: PluginRecord, withdrawn: Mapping[tuple[str, str], tuple[Provided[Any], ...]]
) -> PluginRecord:
    """The record, telling which of its names are withdrawn because others claim them too."""
    if record.status != "ok" or record.name == CORE:
        return record
    reasons = []
    for (word, name), items in withdrawn.items():
        mine = [item for item in items if item.plugin == record.name]
        others = [item.source for item in items if item.plugin != record.name]
        if mine:
            whose = f"also registered by {' and by '.join(others)}" if others else "the core's own"
            reasons.append(f"{word} {name!r} is {whose} and was withdrawn")
    if not reasons:
        return record
    return replace(record, status="conflict", reason="; ".join(reasons))


def _with_faults(record: PluginRecord, faults: Sequence[PluginError]) -> PluginRecord:
    if not faults:
        return record
    return replace(
        record,
        status="failed" if record.status == "ok" else record.status,
        reason="; ".join(filter(None, (record.reason, *map(str, faults)))),
        trace=record.trace + "".join(map(trace, faults)),
    )


def _by_name(kind: _Kind, kept: Mapping[str, list[Provided[Any]]]) -> Mapping[str, Provided[Any]]:
    return MappingProxyType({kind.names(item.value)[0]: item for item in kept[kind.hook]})
