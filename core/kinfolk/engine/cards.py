"""Model cards: from a file beside the model, else from the family, else from the model's metadata.

A card beside the model is ``<model>.card.json``; its fields are those of ``ModelCard``.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from kinfolk.descriptors import Family, ModelCard, SamplingDefaults
from kinfolk.door import ask_each
from kinfolk.errors import ModelFormatError, SettingsError
from kinfolk.gguf.metadata import Metadata
from kinfolk.sched.request import Sampling

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SAMPLING_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
}


_RULES: Final = {
    "string": "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "dataclass": "an object",
}


def find_card(path: Path, meta: Metadata, family: Family) -> ModelCard | None:
    """The card of a model, or ``None`` if no source has one."""
    beside = path.with_suffix(".card.json")
    if beside.is_file():
        return _read(beside)
    name = normalised(meta.string("general.name", default=path.stem))
    for _, cards in ask_each([family], lambda family: family.model_cards()):
        for card in cards:
            if normalised(card.name) == name:
                return card
    return _from_metadata(name, meta)


def normalised(name: str) -> str:
    """``Some Model_27B`` -> ``some-model-27b``."""
    return re.sub(r"[^a-z0-9.-]", "", re.sub(r"[\s_]+", "-", name.lower()))


def _read(path: Path) -> ModelCard:
    try:
        stated = json.loads(path.read_text("utf-8"))
        if not isinstance(stated, dict):
            raise ValueError("it must be an object with the fields of a card")
        _refuse_unknown(stated, ModelCard)
        _refuse_unknown(stated.get("sampling"), SamplingDefaults)
        card = TypeAdapter(ModelCard).validate_python(stated)
        _refuse_unusable(card)
        return card
    except ValidationError as error:
        problems = "; ".join(f"{_dotted(one['loc'])}: {_rule(one)}" for one in error.errors())
        raise ModelFormatError(f"is no model card: {problems}", path=path) from error
    except ValueError as error:
        raise ModelFormatError(f"is no model card: {error}", path=path) from error


def _refuse_unknown(stated: object, kind: type) -> None:
    """Raise ``ValueError`` for unknown fields, which would be ignored silently otherwise."""
    known = [field.name for field in fields(kind)]
    unknown = sorted(set(stated) - set(known)) if isinstance(stated, dict) else []
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; there are {', '.join(known)}")


def _refuse_unusable(card: ModelCard) -> None:
    """Raise ``ValueError`` for defaults that would make every request fail."""
    if problem := _problem(asdict(card.sampling)):
        raise ValueError(f"sampling: {problem}")
    for field, least in (("max_tokens", 1), ("thinking_budget", 0)):
        value = getattr(card, field)
        if value is not None and value < least:
            raise ValueError(f"{field} must be at least {least}, got {value}")


def _problem(sampling: dict[str, Any]) -> str:
    """The error in fields of :class:`Sampling`; empty if they are valid."""
    try:
        Sampling(**sampling)
    except SettingsError as error:
        return str(error)
    return ""


def _rule(problem: ErrorDetails) -> str:
    """The rule that a field breaks; pydantic calls errors ``int_type``, ``int_parsing``..."""
    kind = problem["type"].partition("_")[0]
    if kind not in _RULES:
        return "is missing" if kind == "missing" else problem["msg"]
    return f"must be {_RULES[kind]} (got {problem['input']!r})"


def _dotted(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place))


def _from_metadata(name: str, meta: Metadata) -> ModelCard | None:
    stated: dict[str, Any] = {}
    for last, field in _SAMPLING_KEYS.items():
        key = f"general.sampling.{last}"
        if key not in meta:
            continue
        # -1 and 0 both mean that top-k is off.
        value = max(0, meta.integer(key, minimum=-1)) if field == "top_k" else meta.number(key)
        if problem := _problem({field: value}):
            raise meta.fail(f"key {key!r} is {value}: {problem}", key)
        stated[field] = value
    return ModelCard(name, SamplingDefaults(**stated)) if stated else None
