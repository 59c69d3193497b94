"""Descriptors: the frozen records that plugins register.

They refer to heavy code by references, strings ``"module:attribute"`` that are resolved on first
use, so that discovery never imports torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from kinfolk.checked import NAME, NAME_RULE, Checked, check_name, check_references, is_a
from kinfolk.draft_api import TinyDrafter
from kinfolk.errors import PluginError
from kinfolk.gguf.file_types import TypeMix
from kinfolk.text.formats import (
    ChatFormat,
    ObjectArguments,
    PreTokenizer,
    TaggedArguments,
    ToolSyntax,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kinfolk.config import ModelConfig
    from kinfolk.gguf.inventory import Inventory
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.model_api import Model
    from kinfolk.plans import WeightPlan


def resolve(reference: str) -> Any:
    """Import ``"module:attribute"`` and return the attribute. Raises the errors of importing."""
    module, _, attribute = reference.partition(":")
    value: Any = import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


@dataclass(frozen=True, slots=True)
class QuantFormat(Checked):
    """A block format of GGUF.

    ``block`` numbers are stored in ``bytes`` bytes. ``dequantize`` references a function
    ``(uint8 array [..., n * bytes]) -> float32 array [..., n * block]``; ``quantize`` one in the
    other direction, empty if the format can only be read. The registry sets ``source``, the plugin
    that registered the format, for messages; empty = the core.
    """

    name: str
    ggml_type: int
    block: int
    bytes: int
    dequantize: str
    quantize: str = ""
    source: str = field(default="", compare=False, repr=False)

    def check(self) -> None:
        check_name(self)
        check_references(self, "dequantize", optional=("quantize",))
        for name, least in (("ggml_type", 0), ("block", 1), ("bytes", 1)):
            if getattr(self, name) < least:
                value = getattr(self, name)
                raise ValueError(f"QuantFormat.{name}: {value} is less than {least}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A back end's answer whether it can run an op; ``reason`` says why not."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


YES = Verdict(True)


REFERENCE: Final = "reference"
"""Name of every op's own reference among its back ends; no plugin can register it."""


@dataclass(frozen=True, slots=True)
class OpBackend(Checked):
    """One implementation of one op.

    ``function`` references the implementation ``(arguments, *operands)`` of a
    ``kinfolk_kernels.op.Op``, ``supports`` a function ``(arguments)`` that returns a
    :class:`Verdict`-like value (truthy, with ``reason``), empty = always. Higher ``priority`` is
    asked first. The op's own reference has priority 0, so a back end with a negative priority runs
    only if it is chosen by ``name`` (``--op OP=NAME``). ``device`` is the type of device that the
    back end is asked for, empty = any; a back end chosen by name is asked on every device.

    ``capturable``: a CUDA graph can hold its calls, because they read no tensor on the host and
    equal shapes cause equal launches. ``precompilable``: its calls can be traced with launches
    suppressed, so that kernels compile before the first step, because everything that outlives a
    call is written by launches of ``kinfolk_kernels.launch``. The registry sets ``source``, the
    plugin that registered the back end, for messages; empty = the core.
    """

    op: str
    name: str
    function: str
    supports: str = ""
    priority: int = 0
    device: str = ""
    capturable: bool = False
    precompilable: bool = False
    source: str = field(default="", compare=False, repr=False)

    def check(self) -> None:
        check_name(self, "op")
        check_name(self)
        check_references(self, "function", optional=("supports",))


@dataclass(frozen=True, slots=True)
class DrafterSpec(Checked):
    """A drafter by name: of the host, or with weights of its own.

    A drafter of the host has ``create``, a reference to ``(ModelInfo) -> Drafter``. One with
    weights has ``prepare`` and ``build`` instead, see :mod:`kinfolk.draft_api`. ``prepare``
    references ``(GGUFFile, TargetFacts) -> DraftPlan | None``, which imports no torch; ``None`` =
    the file has no such drafter. ``build`` references ``(DraftPlan, weights, BuildContext, Model)
    -> ModelDrafter``. ``architectures`` are ``fnmatch`` patterns for ``general.architecture`` of
    its files; without any, it is part of the target's own file. ``convert``, which may be empty,
    references ``(HFCheckpoint) -> Conversion | None`` of :mod:`kinfolk.convert`; ``None`` = another
    kind. ``options``: the names of ``--draft-option`` that ``prepare`` reads in
    ``TargetFacts.options``. ``tiny`` is what ``kinfolk check`` runs.
    """

    name: str
    create: str = ""
    summary: str = ""
    architectures: tuple[str, ...] = ()
    prepare: str = ""
    build: str = ""
    convert: str = ""
    options: tuple[str, ...] = ()
    tiny: TinyDrafter | None = None

    def check(self) -> None:
        check_name(self)
        if self.create:
            check_references(self, "create")
            others = ("architectures", "prepare", "build", "convert", "options", "tiny")
            both = "a drafter has weights (prepare, build) or is one of the host (create), not both"
            for name in filter(lambda name: getattr(self, name), others):
                raise ValueError(f"DrafterSpec.{name}: {both}")
        elif not (self.prepare or self.build):
            raise ValueError("DrafterSpec: state create, or prepare and build")
        else:
            check_references(self, "prepare", "build", optional=("convert",))

    @property
    def has_weights(self) -> bool:
        return bool(self.prepare)

    def reads(self, architecture: str) -> bool:
        """Whether files of this ``general.architecture`` hold such a drafter."""
        return any(fnmatchcase(architecture, pattern) for pattern in self.architectures)


@dataclass(frozen=True, slots=True)
class PolicySpec(Checked):
    """A set of model hooks, switched on by ``--policy NAME``.

    ``create`` references ``(ModelInfo) -> object`` with ``@hookimpl`` methods.
    """

    name: str
    create: str
    summary: str = ""

    def check(self) -> None:
        check_name(self)
        check_references(self, "create")


@dataclass(frozen=True, slots=True)
class SamplingDefaults(Checked):
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelCard(Checked):
    """Defaults for a released model, which is matched by the normalised ``general.name``."""

    name: str
    sampling: SamplingDefaults = SamplingDefaults()
    chat: bool = True
    max_tokens: int = 4096
    thinking_budget: int | None = None
    drafter: str = ""


@dataclass(frozen=True, slots=True)
class ModelOutline(Checked):
    """The metadata and tensors of a model file, without vocabulary and weights.

    ``metadata`` are the architecture's keys in file order, without prefix; ``tensors`` are names
    and shapes in torch order. ``group`` query heads share a key head. ``ranges`` bounds the random
    numbers of vectors that are not norms, by name without ``blk.N.``; ``constants`` are the numbers
    of vectors that are equal in every file, by full name.
    """

    metadata: Mapping[str, object]
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    group: int = 1
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    constants: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VocabularyOutline(Checked):
    """A vocabulary of ``size`` tokens, whose ordinary tokens are generated.

    ``symbols`` is the unit of its merges, as in :attr:`PreTokenizer.symbols`; a ``sentencepiece``
    vocabulary has scores instead of merges, and ``pre`` is ``llama``. ``specials`` are the texts of
    the ids from ``first_special`` on, each with whether it is a control token. Later ids are
    padding, or ordinary tokens if characters are merged or ``padded`` is false. ``eos``,
    ``padding`` and ``bos`` are texts among ``specials``; prompts begin with ``bos`` if it is set.
    """

    size: int
    pre: str
    first_special: int
    specials: tuple[tuple[str, bool], ...]
    eos: str
    padding: str
    chat_template: str = ""
    symbols: str = "bytes"
    bos: str = ""
    padded: bool = True


@dataclass(frozen=True, slots=True)
class ReleasedShape(Checked):
    """The shape of a released model, for planning memory and writing files of random weights.

    ``outline(n)`` describes the model with n layers; the release has ``layers``. ``mixes`` are the
    quantisation mixes of published files by name, the most common first.
    """

    name: str
    architecture: str
    layers: int
    outline: Callable[[int], ModelOutline]
    vocabulary: VocabularyOutline
    mixes: Mapping[str, TypeMix]


@dataclass(frozen=True, slots=True)
class TinyModel(Checked):
    """A model of a family that runs in milliseconds, and references for its logits.

    ``reference`` references an implementation without this runtime: ``(tensors, config, tokens) ->
    logits``, with the file's tensors as float32 by name, the family's configuration, tokens int64
    [n] and logits float32 [n, vocabulary]. ``checkpoint`` references a function ``(directory)``
    that writes a random Hugging Face model, equally small, and returns its function from tokens to
    logits. Either may be empty, but not both. ``others`` are further tiny models for variants, such
    as a tied head: the checks of tensors and logits run on each.
    """

    shape: ReleasedShape
    reference: str = ""
    checkpoint: str = ""
    others: tuple[TinyModel, ...] = ()


@runtime_checkable
class Family(Protocol):
    """One model family. Subclass :class:`FamilyBase`, which has defaults for the optional methods.

    ``architectures`` and ``drafter_architectures`` are exact values of ``general.architecture``:
    of models that this family runs, and of files that only draft for another model.
    """

    name: str
    architectures: tuple[str, ...]
    drafter_architectures: tuple[str, ...]

    def read_config(self, meta: Metadata) -> ModelConfig:
        """The configuration of the model. Raises :class:`ModelFormatError` or
        :class:`UnsupportedModelError` naming the key and value that is invalid or unsupported."""
        ...

    def weight_plan(self, config: Any, inventory: Inventory) -> WeightPlan:
        """The weights of the model and the tensors of the file that they are read from."""
        ...

    def build(self, config: Any, weights: Any, context: Any) -> Model:
        """The model over loaded weights."""
        ...

    def hooks(self, config: Any) -> object:
        """A new object with ``@hookimpl`` methods for one loaded model."""
        ...

    def chat(self, meta: Metadata) -> ChatFormat: ...

    def pretokenizers(self) -> tuple[PreTokenizer, ...]: ...

    def shapes(self) -> tuple[ReleasedShape, ...]: ...

    def model_cards(self) -> tuple[ModelCard, ...]: ...

    def convert(self, checkpoint: Any) -> Any: ...

    def tiny(self) -> TinyModel | None: ...

    def bundled_model(self) -> Path | None: ...


class FamilyBase:
    """A family given by references, ``"module:attribute"``, which are resolved on first use.

    ``config``, ``weights``, ``model`` and ``model_hooks`` are required: functions like
    :meth:`Family.read_config`, :meth:`Family.weight_plan` and :meth:`Family.build`, and a class
    without arguments for :meth:`Family.hooks`. The others may stay empty: ``conversion`` and
    ``tiny_model`` are functions like :meth:`Family.convert` and :meth:`Family.tiny`, ``released``
    is one like :meth:`Family.shapes`; ``chat_format``, ``pre_tokenizers`` and ``cards`` are values.
    A subclass may state a method instead. A reference that cannot be resolved is a
    :class:`PluginError` that names family, field and reference.
    """

    name: str = ""
    architectures: tuple[str, ...] = ()
    drafter_architectures: tuple[str, ...] = ()

    config: str = ""
    weights: str = ""
    model: str = ""
    model_hooks: str = ""
    chat_format: str = ""
    pre_tokenizers: str = ""
    released: str = ""
    cards: str = ""
    conversion: str = ""
    tiny_model: str = ""

    def read_config(self, meta: Metadata) -> ModelConfig:
        config: ModelConfig = self._resolved("config")(meta)
        return config

    def weight_plan(self, config: Any, inventory: Inventory) -> WeightPlan:
        plan: WeightPlan = self._resolved("weights")(config, inventory)
        return plan

    def build(self, config: Any, weights: Any, context: Any) -> Model:
        model: Model = self._resolved("model")(config, weights, context)
        return model

    def hooks(self, config: Any) -> object:
        return self._resolved("model_hooks")()

    def chat(self, meta: Metadata) -> ChatFormat:
        chat: ChatFormat = self._resolved("chat_format") if self.chat_format else ChatFormat()
        return chat

    def pretokenizers(self) -> tuple[PreTokenizer, ...]:
        return self._resolved("pre_tokenizers") if self.pre_tokenizers else ()

    def shapes(self) -> tuple[ReleasedShape, ...]:
        return self._resolved("released")() if self.released else ()

    def model_cards(self) -> tuple[ModelCard, ...]:
        return self._resolved("cards") if self.cards else ()

    def convert(self, checkpoint: Any) -> Any:
        """The conversion of a Hugging Face model, or ``None`` if it is of another family.

        From :class:`kinfolk.convert.checkpoint.HFCheckpoint` to
        :class:`kinfolk.convert.plan.Conversion`.
        """
        return self._resolved("conversion")(checkpoint) if self.conversion else None

    def tiny(self) -> TinyModel | None:
        """The model that the conformance kit runs; without one it cannot check the family."""
        return self._resolved("tiny_model")() if self.tiny_model else None

    def bundled_model(self) -> Path | None:
        """A model file shipped with the plugin, or ``None``."""
        return None

    def unstated(self) -> tuple[str, ...]:
        """Required methods that have neither a reference nor an implementation in the subclass."""
        return tuple(
            method
            for method, reference in _REQUIRED.items()
            if not getattr(self, reference)
            and getattr(type(self), method) is getattr(FamilyBase, method)
        )

    def _resolved(self, field: str) -> Any:
        reference: str = getattr(self, field)
        try:
            return resolve(reference)
        except (ImportError, AttributeError, ValueError) as error:
            raise PluginError(
                f"family {self.name!r}: {field} = {reference!r} cannot be resolved: {error}"
            ) from error


def family_problem(family: Any) -> str:
    """What keeps an object from being a family; empty if nothing does."""
    if inspect.isclass(family):
        return "is a class; register an instance of it"
    methods = {name: spec for name, spec in vars(Family).items() if inspect.isfunction(spec)}
    methods = {name: spec for name, spec in methods.items() if not name.startswith("_")}
    missing = [name for name in (*Family.__annotations__, *methods) if not hasattr(family, name)]
    if isinstance(family, FamilyBase):
        missing += family.unstated()
    if missing:
        return (
            f"has no {', '.join(missing)}; subclass kinfolk.descriptors.{FamilyBase.__name__} "
            "for the optional parts"
        )
    if not isinstance(family.name, str) or not NAME.fullmatch(family.name):
        return f"has name {family.name!r}; {NAME_RULE}"
    problems = [_architectures(family, f) for f in ("architectures", "drafter_architectures")]
    if not family.architectures and not family.drafter_architectures:
        problems.append("claims no architecture")
    problems += [_signature(getattr(family, name), spec) for name, spec in methods.items()]
    return next(filter(None, problems), "")


def _architectures(family: Family, field: str) -> str:
    value = getattr(family, field)
    if is_a(tuple[str, ...])(value):
        return f"has {field} {value!r}; it must be a tuple of str"
    for item in value:
        if not item or item != item.strip() or item != item.lower():
            return f"has {field} with {item!r}; architectures are lower case and not blank"
    return ""


def _signature(method: Any, spec: Any) -> str:
    """Whether ``method`` can be called with the arguments of ``spec``."""
    name, (_, *arguments) = spec.__name__, inspect.signature(spec).parameters
    shape = f"{name}({', '.join(arguments)})"
    if not callable(method):
        return f"has {name} that is no method; it must be {shape}"
    try:
        signature = inspect.signature(method)
    except ValueError:  # written in C, without a readable signature
        return ""
    try:
        signature.bind(*arguments)
    except TypeError:
        return f"has {name}{signature}; it must be {shape}"
    return ""


_REQUIRED: Final = {
    "read_config": "config",
    "weight_plan": "weights",
    "build": "model",
    "hooks": "model_hooks",
}
"""Methods of a family that have no default, and the references that state them."""


__all__ = [
    "YES",
    "ChatFormat",
    "DrafterSpec",
    "Family",
    "FamilyBase",
    "ModelCard",
    "ModelOutline",
    "ObjectArguments",
    "OpBackend",
    "PolicySpec",
    "PreTokenizer",
    "QuantFormat",
    "ReleasedShape",
    "SamplingDefaults",
    "TaggedArguments",
    "TinyModel",
    "ToolSyntax",
    "Verdict",
    "VocabularyOutline",
    "resolve",
]
