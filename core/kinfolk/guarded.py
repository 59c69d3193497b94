"""Families, commands and drafters of plugins, called through :mod:`kinfolk.door`.

Answers are of the declared types, whose records have checked their fields. Functions in these
records are called through the door too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kinfolk.checked import is_a
from kinfolk.config import ModelConfig
from kinfolk.descriptors import (
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
from kinfolk.door import REFUSALS, Misfit, ask, behind
from kinfolk.draft_api import Drafter, DraftPlan
from kinfolk.errors import PluginError
from kinfolk.plans import WeightPlan
from kinfolk.text.formats import ChatFormat, PreTokenizer

if TYPE_CHECKING:
    import click

    from kinfolk.draft_api import ModelDrafter, TargetFacts
    from kinfolk.gguf.file import GGUFFile
    from kinfolk.gguf.inventory import Inventory
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.model_api import Model, ModelInfo

T = TypeVar("T")

CONVERSION: Final = "kinfolk.convert.plan:Conversion"
"""By name, because ``convert`` is above the registry in the order of imports."""

_HELP_WIDTH: Final = 80


def guarded(value: Any, source: str) -> Any:
    """A registered value, guarded; ``source`` names its plugin in messages."""
    if isinstance(value, OpBackend | QuantFormat | GuardedCommand):
        return replace(value, source=source)
    return GuardedFamily.of(value, source) if isinstance(value, Family) else value


@dataclass(slots=True, eq=False)
class GuardedFamily:
    """A family, and ``source``, its plugin.

    Asked about a file or a checkpoint, a family may refuse it with an error of the project, which
    passes unchanged. Asked about itself, it has nothing to refuse: every error is a
    :class:`PluginError`.
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
        return self._ask("read_config", lambda one: one.read_config(meta), is_a(ModelConfig))

    def weight_plan(self, config: Any, inventory: Inventory) -> WeightPlan:
        kind = is_a(WeightPlan)
        return self._ask("weight_plan", lambda one: one.weight_plan(config, inventory), kind)

    def build(self, config: Any, weights: Any, context: Any) -> Model:
        return self._ask("build", lambda one: one.build(config, weights, context), _model)

    def hooks(self, config: Any) -> object:
        return self._ask("hooks", lambda one: one.hooks(config))

    def chat(self, meta: Metadata) -> ChatFormat:
        return self._ask("chat", lambda one: one.chat(meta), is_a(ChatFormat))

    def convert(self, checkpoint: Any) -> Any:
        found = self._ask("convert", lambda one: one.convert(checkpoint), _conversion)
        return None if found is None else self._guarded_conversion(found)

    # -- of itself

    def pretokenizers(self) -> tuple[PreTokenizer, ...]:
        kind = is_a(tuple[PreTokenizer, ...])
        return self._ask("pretokenizers", lambda one: one.pretokenizers(), kind, passing=())

    def shapes(self) -> tuple[ReleasedShape, ...]:
        kind = is_a(tuple[ReleasedShape, ...])
        found = self._ask("shapes", lambda one: one.shapes(), kind, passing=())
        return tuple(map(self._guarded_shape, found))

    def model_cards(self) -> tuple[ModelCard, ...]:
        kind = is_a(tuple[ModelCard, ...])
        return self._ask("model_cards", lambda one: one.model_cards(), kind, passing=())

    def tiny(self) -> TinyModel | None:
        found = self._ask("tiny", lambda one: one.tiny(), is_a(TinyModel | None), passing=())
        return None if found is None else self._guarded_tiny(found)

    def bundled_model(self) -> Path | None:
        return self._ask("bundled_model", lambda one: one.bundled_model(), _model_file, passing=())

    def faults(self) -> tuple[PluginError, ...]:
        """Errors of the methods that are called for files of every family; they do not name the
        plugin."""
        mine = replace(self, source="")
        return _errors(mine.pretokenizers, mine.shapes, mine.model_cards, mine.bundled_model)

    # -- the door

    def _ask(
        self,
        method: str,
        call: Callable[[Family], T],
        misfit: Misfit | None = None,
        *,
        passing: tuple[type[BaseException], ...] = REFUSALS,
    ) -> T:
        what = f"Family.{method}"
        return ask(self.who, what, lambda: call(self.family), misfit, passing=passing)

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
    """The name of a family in messages, with its plugin if that is known."""
    return family.who if isinstance(family, GuardedFamily) else f"family {family.name!r}"


@dataclass(frozen=True, slots=True)
class GuardedCommand:
    """A command of a plugin, by the name under which it was added."""

    name: str
    command: click.Command
    source: str = ""

    @property
    def hidden(self) -> bool:
        return bool(self.command.hidden)

    @property
    def who(self) -> str:
        """The command in messages."""
        return f"command {self.name!r}" + (f" of {self.source}" if self.source else "")

    def short_help(self, limit: int = _HELP_WIDTH) -> str:
        """The line of help about it. Raises :class:`PluginError`."""
        text = self.command.get_short_help_str
        return ask(self.who, "get_short_help_str", lambda: text(limit), is_a(str), passing=())

    def faults(self) -> tuple[PluginError, ...]:
        """Errors of calls that precede running it; they do not name the plugin."""
        return _errors(replace(self, source="").short_help)


@dataclass(frozen=True, slots=True, repr=False)
class GuardedDrafter:
    """A drafter of one model; every error is a :class:`PluginError`."""

    who: str
    drafter: Drafter

    @classmethod
    def create(cls, spec: DrafterSpec, source: str, info: ModelInfo) -> GuardedDrafter:
        """The drafter of ``spec`` for a model. Its refusal of the model passes unchanged."""
        who = f"drafter {spec.name!r} of {source}"
        return cls(who, ask(who, spec.create, lambda: resolve(spec.create)(info), _drafter))

    def __repr__(self) -> str:
        return self.who

    def propose(self, known: list[int], limit: int) -> list[int]:
        call = self.drafter.propose
        return ask(self.who, "propose", lambda: call(known, limit), _tokens, passing=())

    def release(self, known: list[int]) -> None:
        ask(self.who, "release", lambda: self.drafter.release(known), passing=())


def prepare_drafter(
    spec: DrafterSpec, source: str, file: GGUFFile, facts: TargetFacts
) -> DraftPlan | None:
    """Ask a drafter with weights what it needs. Its refusal of file or target passes unchanged."""
    plan: DraftPlan | None = ask(
        f"drafter {spec.name!r} of {source}",
        spec.prepare,
        lambda: resolve(spec.prepare)(file, facts),
        is_a(DraftPlan | None),
    )
    return plan


def build_drafter(
    spec: DrafterSpec, source: str, plan: DraftPlan, weights: Any, context: Any, target: Model
) -> ModelDrafter:
    """Build a drafter over loaded weights, for a built target."""
    drafter: ModelDrafter = ask(
        f"drafter {spec.name!r} of {source}",
        spec.build,
        lambda: resolve(spec.build)(plan, weights, context, target),
        _model_drafter,
    )
    return drafter


def _errors(*questions: Callable[[], object]) -> tuple[PluginError, ...]:
    """The errors of the questions that fail."""
    found = []
    for question in questions:
        try:
            question()
        except PluginError as error:
            found.append(error)
    return tuple(found)


# -- what is wrong with an answer; empty if nothing is --------------------------------------------


def _has(kind: str, *methods: str) -> Misfit:
    """Whether an answer has the methods of a protocol."""

    def misfit(value: object) -> str:
        missing = [name for name in methods if not callable(getattr(value, name, None))]
        return f"is no {kind}: it has no {', '.join(missing)}" if missing else ""

    return misfit


_model = _has("kinfolk.model_api.Model", "forward", "commit", "embed", "norm", "logits")
_drafter = _has("kinfolk.draft_api.Drafter", "propose", "release")


_model_drafter = _has("kinfolk.draft_api.ModelDrafter", "extend", "commit", "draft")


def _conversion(value: object) -> str:
    return is_a(resolve(CONVERSION) | None)(value)


def _floats(value: object) -> str:
    kind = str(getattr(value, "dtype", ""))
    return "" if kind == "float32" else "is no array of float32"


def _model_file(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, Path):
        return "is no pathlib.Path"
    return "" if value.is_file() else "is no file"


def _tokens(value: object) -> str:
    fits = isinstance(value, list | tuple) and all(type(token) is int for token in value)
    return "" if fits else "is no list of ints"
