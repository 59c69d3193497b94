"""Finds who converts a checkpoint: a family, or a drafter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kinfolk.checked import is_a
from kinfolk.convert.checkpoint import Config, HFCheckpoint
from kinfolk.convert.plan import Conversion
from kinfolk.descriptors import DrafterSpec, resolve
from kinfolk.door import ask, left_out
from kinfolk.errors import ConversionError, KinfolkError, PluginError


class Converter(Protocol):
    """Who may know a checkpoint; a family is one."""

    @property
    def name(self) -> str: ...

    def convert(self, checkpoint: Any) -> Any:
        """The conversion, or ``None`` for a checkpoint of something else."""
        ...


C = TypeVar("C", bound=Converter)


@dataclass(frozen=True, slots=True)
class DrafterConverter:
    """A drafter that converts checkpoints; ``source`` is the plugin that registered it."""

    spec: DrafterSpec
    source: str

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def who(self) -> str:
        return f"drafter {self.name!r} of {self.source}"

    def convert(self, checkpoint: HFCheckpoint) -> Conversion | None:
        reference = self.spec.convert
        if not reference:
            return None
        conversion: Conversion | None = ask(
            self.who, reference, lambda: resolve(reference)(checkpoint), is_a(Conversion | None)
        )
        return conversion


def find_conversion(
    checkpoint: HFCheckpoint, families: Iterable[C], noun: str = "family"
) -> tuple[C, Conversion]:
    """The only family, or other ``noun``, that converts the checkpoint, with its conversion.

    What a family says against the checkpoint counts only where no other knows it: one that is
    asked about everybody's checkpoints may stumble over those of others. Raises otherwise, and if
    the family has looked at some keys of the configuration only.
    """
    families = tuple(families)
    found: list[tuple[C, Conversion, Config]] = []
    refusals: list[KinfolkError] = []
    faults: list[KinfolkError] = []
    for family in families:
        # Each family starts with no key marked as read.
        checkpoint.config = checkpoint.config.afresh()
        try:
            conversion = family.convert(checkpoint)
        except KinfolkError as error:
            (faults if isinstance(error, PluginError) else refusals).append(error)
            continue
        if conversion is not None:
            found.append((family, conversion, checkpoint.config))
    said = refusals or (faults if len(families) == 1 else [])
    if said and not found:
        raise said[0] if len(said) == 1 else ConversionError("; ".join(map(str, said)))
    for one in (*refusals, *faults):
        left_out(one)
    if len(found) == 1:
        family, conversion, config = found[0]
        config.refuse_unread()
        return family, conversion
    model_type = checkpoint.config.text("model_type", "unknown")
    if found:
        names = " and ".join(family.name for family, _, _ in found)
        choose = "choose one with --model-family" if noun == "family" else "uninstall one"
        raise ConversionError(
            f"{checkpoint.config.path}: both {names} claim models of type {model_type!r}; {choose}"
        )
    names = ", ".join(sorted(family.name for family in families)) or "none"
    hint = "; a drafter is converted with --target MODEL" if noun == "family" else ""
    raise ConversionError(
        f"{checkpoint.config.path}: no installed {noun} converts models of type {model_type!r} "
        f"(installed: {names}){hint}"
    )
