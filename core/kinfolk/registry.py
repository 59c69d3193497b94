"""What the installed plugins provide: built once, frozen, and passed on as an argument.

There is no global registry. A process builds one with :meth:`Registry.discover`, a test with
:meth:`Registry.build`; building twice has no side effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
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
from kinfolk.guarded import GuardedCommand, GuardedFamily
from kinfolk.loader import CORE, KINDS, PluginRecord, Provided, find, load
from kinfolk.quant.formats import QuantFormats
from kinfolk.version import __version__

if TYPE_CHECKING:
    from kinfolk.descriptors import DrafterSpec, OpBackend, PolicySpec, QuantFormat
    from kinfolk.settings import Settings

_BUILTIN: Final = "kinfolk.builtin"
T = TypeVar("T")


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
        found = find(settings.plugins)
        records = [load(record) if record.status == "ok" else record for record in found]
        registry = cls._of([_core(), *records], reserved_commands)
        if settings.strict_plugins:
            registry.examined().check()
        return registry

    @classmethod
    def build(cls, plugins: Mapping[str, ModuleType], *, builtin: bool = True) -> Registry:
        """Exactly these modules, by plugin name, and the core's own unless ``builtin`` is off."""
        records = [
            load(PluginRecord(name, module.__name__), module)
            for name, module in sorted(plugins.items())
        ]
        return cls._of([_core(), *records] if builtin else records)

    @classmethod
    def _of(cls, records: Iterable[PluginRecord], reserved: Collection[str] = ()) -> Registry:
        """The registry of these records. A name that several plugins claim is withdrawn from all of
        them; the core keeps its names."""
        records = tuple(records)
        claims: dict[tuple[str, str], list[Provided[Any]]] = {}
        for record in records:
            for hook, items in record.provided.items():
                for item in items:
                    for claim in _claims(hook, item):
                        claims.setdefault(claim, []).append(item)
        taken = {("command", name) for name in reserved}
        clashes = {
            claim: items for claim, items in claims.items() if len(items) > 1 or claim in taken
        }
        records = tuple(_without_clashes(record, clashes) for record in records)

        def kept(hook: str) -> tuple[Provided[Any], ...]:
            return tuple(item for one in records for item in one.provided.get(hook, ()))

        def by_name(hook: str) -> Mapping[str, Provided[Any]]:
            return MappingProxyType({item.value.name: item for item in kept(hook)})

        return cls(
            records=records,
            families=by_name("register_families"),
            op_backends=kept("register_op_backends"),
            quant_formats=kept("register_quant_formats"),
            drafters=by_name("register_drafters"),
            policies=by_name("register_policies"),
            commands=by_name("register_commands"),
            withdrawn=MappingProxyType(
                {claim: tuple(item.source for item in items) for claim, items in clashes.items()}
            ),
        )

    def formats(self) -> QuantFormats:
        """The block formats of the core and of plugins."""
        return QuantFormats([provided.value for provided in self.quant_formats])

    # -- diagnosis

    def problems(self) -> tuple[str, ...]:
        """One line for each plugin that failed or is in conflict."""
        return tuple(
            f"{record.source}: {record.reason}"
            for record in self.records
            if record.status in ("failed", "conflict")
        )

    def examined(self) -> Registry:
        """The registry with records that also name later failures: every family is asked for its
        shapes, cards and the like, and every command for its line of help."""
        return replace(self, records=tuple(map(_examined, self.records)))

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
            chosen = self._named("family", self.families, override, "--model-family")
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
        return self._named("drafter", self.drafters, name, "--draft")

    def policy(self, name: str) -> Provided[PolicySpec]:
        """A policy by name; :class:`SettingsError` if there is none."""
        return self._named("policy", self.policies, name, "--policy")

    def _named(
        self, word: str, table: Mapping[str, Provided[T]], name: str, flag: str
    ) -> Provided[T]:
        if name in table:
            return table[name]
        claimants = self.withdrawn.get((word, name))
        if claimants:
            raise SettingsError(
                f"{flag} {name}: the {word} is registered by {' and by '.join(claimants)}; "
                "uninstall one of them or select plugins with KINFOLK_PLUGINS"
            )
        there = ", ".join(f"{item!r} ({table[item].source})" for item in sorted(table)) or "none"
        raise SettingsError(f"{flag} {name}: no such {word}; installed: {there}")

    def _unknown(self, architecture: str) -> UnsupportedModelError:
        for item in self.families.values():
            if architecture in item.value.drafter_architectures:
                return UnsupportedModelError(
                    f"{architecture!r} is a drafter of family {item.value.name!r}: it speeds up "
                    "another model and cannot answer by itself"
                )
        for drafter in self.drafters.values():
            if drafter.value.reads(architecture):
                return UnsupportedModelError(
                    f"{architecture!r} is a drafter, {drafter.value.name!r}: it speeds up another "
                    "model and cannot answer by itself; pass it with --draft-model"
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
    return [
        {
            **{key: getattr(record, key) for key in _DESCRIBED},
            "hooks": list(record.hooks),
            "provides": {
                hook.removeprefix("register_"): [
                    kind.names(item.value)[0] for item in record.provided.get(hook, ())
                ]
                for hook, kind in KINDS.items()
            },
            "summaries": {
                hook.removeprefix("register_"): {
                    item.value.name: item.value.summary for item in record.provided.get(hook, ())
                }
                for hook in ("register_drafters", "register_policies")
            },
        }
        for record in registry.records
    ]


_DESCRIBED: Final = ("name", "module", "distribution", "version", "status", "reason", "trace")


def _core() -> PluginRecord:
    record = load(PluginRecord(CORE, _BUILTIN, "kinfolk", __version__), import_module(_BUILTIN))
    if record.status != "ok":
        raise PluginError(f"the core's own plugin is broken: {record.reason}")
    return record


def _claims(hook: str, item: Provided[Any]) -> list[tuple[str, str]]:
    """The kind and name of each name that a value takes."""
    return [(KINDS[hook].word, name) for name in KINDS[hook].names(item.value)]


def _without_clashes(
    record: PluginRecord, clashes: Mapping[tuple[str, str], list[Provided[Any]]]
) -> PluginRecord:
    """The record without values whose names others claim too; its reason names them."""
    if record.name == CORE:
        return record
    provided = {
        hook: tuple(item for item in items if clashes.keys().isdisjoint(_claims(hook, item)))
        for hook, items in record.provided.items()
    }
    reasons = []
    for (word, name), items in clashes.items():
        others = [item.source for item in items if item.plugin != record.name]
        if len(others) < len(items):
            whose = f"also registered by {' and by '.join(others)}" if others else "the core's own"
            reasons.append(f"{word} {name!r} is {whose} and was withdrawn")
    if not reasons:
        return record
    return replace(record, status="conflict", reason="; ".join(reasons), provided=provided)


def _examined(record: PluginRecord) -> PluginRecord:
    values = [item.value for hook in KINDS for item in record.provided.get(hook, ())]
    faults = [
        fault
        for value in values
        if isinstance(value, GuardedFamily | GuardedCommand)
        for fault in value.faults()
    ]
    if not faults:
        return record
    return replace(
        record,
        status="failed" if record.status == "ok" else record.status,
        reason="; ".join(filter(None, (record.reason, *map(str, faults)))),
        trace=record.trace + "".join(map(trace, faults)),
    )
