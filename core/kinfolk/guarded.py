"""What plugins bring, as the core holds it: behind the door.

Answers are of the declared types down to the fields of their records, and functions among these
are behind the door too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from kinfolk.config import ModelConfig
from kinfolk.descriptors import (
    Drafter,
    DrafterSpec,
    Family,
    ModelCard,
    ModelOutline,
    OpBackend,
    QuantFormat,
    ReleasedShape,
    TinyModel,
    resolve,
)
from kinfolk.door import Misfit, ask, behind
from kinfolk.errors import PluginError
from kinfolk.plans import WeightPlan
from kinfolk.text.formats import ChatFormat, PreTokenizer

if TYPE_CHECKING:
    import click

    from kinfolk.gguf.inventory import Inventory
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.model_api import Model, ModelInfo

T = TypeVar("T")

CONVERSION: Final = "kinfolk.convert.plan:Conversion"
"""By name, because conversion stands above the registry."""

_STRICT: Final = ConfigDict(strict=True, revalidate_instances="always")
_MODEL: Final = ("forward", "commit", "embed", "head", "features")
_HELP_WIDTH: Final = 80


def guarded(value: Any, source: str) -> Any:
    """Something registered, as the core holds it; ``source`` says who brings it."""
    if isinstance(value, OpBackend | QuantFormat):
        return replace(value, source=source)
    return GuardedFamily.of(value, source) if isinstance(value, Family) else value


@dataclass(slots=True, eq=False)
class GuardedFamily:
    """A family, and ``source``, who brings it.

    Asked about a file or a checkpoint it may refuse that with an error of the project, which is
    handed on. What it states of itself it has no reason to refuse: every error is a
    :class:`PluginError` then.
    """

    family: Family
    source: str
    name: str
    architectures: tuple[str, ...]
    drafter_architectures: tuple[str, ...]

    @classmethod
    def of(cls, family: Family, source: str) -> GuardedFamily:
        return cls(family, source, family.name, family.architectures, family.drafter_architectures)

    @property
    def who(self) -> str:
        """The family in messages."""
        return f"family {self.name!r}" + (f" of {self.source}" if self.source else "")

    # -- about a file or a checkpoint

    def read_config(self, meta: Metadata) -> ModelConfig:
        return self._about("read_config", lambda: self.family.read_config(meta), is_a(ModelConfig))

    def weight_plan(self, config: Any, inventory: Inventory) -> WeightPlan:
        return self._about(
            "weight_plan", lambda: self.family.weight_plan(config, inventory), is_a(WeightPlan)
        )

    def build(self, config: Any, weights: Any, context: Any) -> Model:
        return self._about("build", lambda: self.family.build(config, weights, context), _model)

    def hooks(self, config: Any) -> object:
        return self._about("hooks", lambda: self.family.hooks(config))

    def chat(self, meta: Metadata) -> ChatFormat:
        return self._about("chat", lambda: self.family.chat(meta), is_a(ChatFormat))

    def convert(self, checkpoint: Any) -> Any:
        found = self._about("convert", lambda: self.family.convert(checkpoint), _conversion)
        return None if found is None else self._guarded_conversion(found)

    # -- of itself

    def pretokenizers(self) -> tuple[PreTokenizer, ...]:
        kind = tuple[PreTokenizer, ...]
        return self._states("pretokenizers", lambda: self.family.pretokenizers(), is_a(kind))

    def shapes(self) -> tuple[ReleasedShape, ...]:
        kind = tuple[ReleasedShape, ...]
        found = self._states("shapes", lambda: self.family.shapes(), is_a(kind))
        return tuple(map(self._guarded_shape, found))

    def model_cards(self) -> tuple[ModelCard, ...]:
        kind = tuple[ModelCard, ...]
        return self._states("model_cards", lambda: self.family.model_cards(), is_a(kind))

    def tiny(self) -> TinyModel | None:
        found = self._states("tiny", lambda: self.family.tiny(), is_a(TinyModel | None))
        return None if found is None else self._guarded_tiny(found)

    def bundled_model(self) -> Path | None:
        return self._states("bundled_model", lambda: self.family.bundled_model(), _model_file)

    def faults(self) -> tuple[PluginError, ...]:
        """What fails of that which is asked whatever a file's own family is; does not name the
        plugin."""
        mine = replace(self, source="")
        return failing(mine.pretokenizers, mine.shapes, mine.model_cards, mine.bundled_model)

    # -- the door

    def _about(self, method: str, call: Callable[[], T], misfit: Misfit | None = None) -> T:
        return ask(self.who, f"Family.{method}", call, misfit)

    def _states(self, method: str, call: Callable[[], T], misfit: Misfit) -> T:
        return ask(self.who, f"Family.{method}", call, misfit, passing=())

    def _guarded_shape(self, shape: ReleasedShape) -> ReleasedShape:
        what = f"outline of {shape.name!r}"
        return replace(shape, outline=behind(self.who, what, shape.outline, is_a(ModelOutline)))

    def _guarded_tiny(self, tiny: TinyModel) -> TinyModel:
        others = tuple(map(self._guarded_tiny, tiny.others))
        return replace(tiny, shape=self._guarded_shape(tiny.shape), others=others)

    def _guarded_conversion(self, found: Any) -> Any:
        def recipe(one: Any) -> Any:
            what = f"Transform.apply of {one.name!r}"
            apply = behind(self.who, what, one.transform.apply, _floats)
            return replace(one, transform=replace(one.transform, apply=apply))

        text, keys = is_a(str), is_a(Mapping[str, object])
        return replace(
            found,
            tensors=tuple(map(recipe, found.tensors)),
            tokenizer=behind(self.who, "Conversion.tokenizer", found.tokenizer, keys),
            source_name=behind(self.who, "Conversion.source_name", found.source_name, text),
        )


def who_is(family: Family) -> str:
    """A family in messages, with its plugin if that is known."""
    return family.who if isinstance(family, GuardedFamily) else f"family {family.name!r}"


@dataclass(frozen=True, slots=True)
class GuardedCommand:
    """A command of a plugin, by the name under which it was added."""

    name: str
    command: click.Command
    source: str
    hidden: bool = False

    @property
    def who(self) -> str:
        return f"command {self.name!r}" + (f" of {self.source}" if self.source else "")

    def short_help(self, limit: int = _HELP_WIDTH) -> str:
        """The line of help about it. Raises :class:`PluginError`."""
        return ask(
            self.who,
            "get_short_help_str",
            lambda: self.command.get_short_help_str(limit),
            is_a(str),
            passing=(),
        )

    def faults(self) -> tuple[PluginError, ...]:
        """What fails before it is run; does not name the plugin."""
        return failing(replace(self, source="").short_help)


@dataclass(frozen=True, slots=True, repr=False)
class GuardedDrafter:
    """A drafter of one model; every error is a :class:`PluginError`."""

    who: str
    drafter: Drafter

    @classmethod
    def create(cls, spec: DrafterSpec, source: str, info: ModelInfo) -> GuardedDrafter:
        """The drafter of ``spec`` for a model. Raises what it says against the model."""
        who = f"drafter {spec.name!r} of {source}"
        return cls(who, ask(who, spec.create, lambda: resolve(spec.create)(info), _drafter))

    def __repr__(self) -> str:
        return self.who

    def propose(self, known: list[int], limit: int) -> list[int]:
        return ask(
            self.who, "propose", lambda: self.drafter.propose(known, limit), _tokens, passing=()
        )

    def release(self, known: list[int]) -> None:
        ask(self.who, "release", lambda: self.drafter.release(known), passing=())


def failing(*questions: Callable[[], object]) -> tuple[PluginError, ...]:
    """The errors of those that fail."""
    found = []
    for question in questions:
        try:
            question()
        except PluginError as error:
            found.append(error)
    return tuple(found)


# -- what an answer must be -----------------------------------------------------------------------


def is_a(kind: Any) -> Misfit:
    """Whether an answer is of a type, and the fields of records in it of theirs."""
    return lambda value: _misfit(kind, value)


def _misfit(kind: Any, value: object) -> str:
    try:
        _adapter(kind).validate_python((value,), strict=True)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_context=False):
            # Strictly, nothing but a dict is one; what a family freezes is as good.
            if one["type"] == "dict_type" and isinstance(one["input"], Mapping):
                continue
            place = ".".join(map(str, one["loc"][1:]))
            return f"is no {_named(kind)}" + (f": {place}: {one['msg']}" if place else "")
    return ""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # In a tuple, because the settings of one that is checked reach records, but are none of theirs.
    alone: Any = GenericAlias(tuple, (kind,))
    return TypeAdapter(alone, config=_STRICT)


def _named(kind: Any) -> str:
    """``tuple[PreTokenizer, ...]``: without the modules."""
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return re.sub(r"(\w+\.)+(?=\w)", "", text)


def _conversion(value: object) -> str:
    return _misfit(resolve(CONVERSION) | None, value)


def _floats(value: object) -> str:
    kind = str(getattr(value, "dtype", ""))
    return "" if kind == "float32" else "is no array of float32"


def _model(value: object) -> str:
    missing = [name for name in _MODEL if not callable(getattr(value, name, None))]
    return f"is no kinfolk.model_api.Model: it has no {', '.join(missing)}" if missing else ""


def _model_file(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, Path):
        return "is no pathlib.Path"
    return "" if value.is_file() else "is no file"


def _drafter(value: object) -> str:
    missing = [name for name in ("propose", "release") if not callable(getattr(value, name, None))]
    return f"is no kinfolk.descriptors.Drafter: it has no {', '.join(missing)}" if missing else ""


def _tokens(value: object) -> str:
    fits = isinstance(value, list | tuple) and all(type(token) is int for token in value)
    return "" if fits else "is no list of ints"
