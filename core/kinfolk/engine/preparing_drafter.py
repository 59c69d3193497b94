"""Prepares a drafter with weights: its file, its kind, and whether it fits the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from kinfolk.descriptors import DrafterSpec
from kinfolk.draft_api import DraftPlan, TargetFacts
from kinfolk.errors import SettingsError, UnsupportedModelError
from kinfolk.gguf.file import GGUFFile
from kinfolk.guarded import prepare_drafter as ask_for_plan
from kinfolk.loader import Provided
from kinfolk.plans import StatePlan, WeightPlan
from kinfolk.quant.formats import QuantFormats
from kinfolk.registry import Registry
from kinfolk.settings import Settings
from kinfolk.state.layout import pool_layouts

_TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class PreparedDrafter:
    """A drafter that is checked and planned; its weights are not read yet. It proposes ``rows``
    tokens, a ``tree`` or a chain. ``file`` may be the target's own."""

    spec: DrafterSpec
    source: str
    file: GGUFFile
    plan: DraftPlan
    rows: int
    tree: bool

    @property
    def arena_rows(self) -> int:
        """Rows of a lane in the arena: those of its block, and those of its tree."""
        return max(self.plan.block, self.rows + 1 if self.tree else 0)

    def weights_in(self, file: GGUFFile, target: WeightPlan) -> WeightPlan:
        """What to load. In the target's own ``file``, the target's weights are no strangers."""
        mine = self.plan.weights
        if self.file is not file:
            return mine
        others = {spec.tensor: "the model's own" for spec in target}
        return replace(mine, ignored={**others, **target.ignored, **mine.ignored})

    def beside(self, weights: WeightPlan) -> WeightPlan:
        """The weights of the target and of the drafter, to reckon with both."""
        return WeightPlan((*weights, *self.plan.weights))

    def behind(self, state: StatePlan) -> StatePlan:
        """The target's state with the drafter's behind it."""
        return StatePlan((*state.layers, *self.plan.state))


def prepare_drafter(
    settings: Settings,
    registry: Registry,
    formats: QuantFormats,
    file: GGUFFile,
    facts: TargetFacts,
) -> PreparedDrafter | None:
    """The drafter with weights that the settings ask for, ``None`` if they ask for none; ``file``
    is the target's.

    Raises :class:`SettingsError`, :class:`ModelFormatError` or :class:`UnsupportedModelError`,
    which name file, key and numbers.
    """
    named = None if settings.drafter is None else registry.drafter(settings.drafter)
    if settings.draft_model is None and (named is None or not named.value.has_weights):
        _check_options(settings, named)
        return None
    if named is not None and not named.value.has_weights:
        raise SettingsError(
            f"--draft-model {settings.draft_model}: the drafter {named.value.name!r} has no "
            "weights; leave out one of --drafter and --draft-model"
        )
    draft_file = file
    if settings.draft_model is not None:
        draft_file = _open(settings.draft_model, formats)
        named = _reader_of(draft_file, named, registry)
    assert named is not None
    _check_options(settings, named)
    # Without architectures, a drafter is part of the target's own file.
    elsewhere = draft_file is file and bool(named.value.architectures)
    plan = None if elsewhere else ask_for_plan(named.value, named.source, draft_file, facts)
    if plan is None:
        flag = "" if settings.draft_model else "; name the file that does with --draft-model"
        raise SettingsError(f"{draft_file.path} holds no drafter {named.value.name!r}{flag}")
    _check(plan, draft_file, facts)
    rows, tree = _shape(plan, settings, draft_file.path)
    return PreparedDrafter(named.value, named.source, draft_file, plan, rows, tree)


def _check_options(settings: Settings, named: Provided[DrafterSpec] | None) -> None:
    known = () if named is None else named.value.options
    for name, value in settings.draft_option.items():
        if name in known:
            continue
        reason = "there is no drafter to have it"
        if named is not None:
            has = f"the options {', '.join(known)}" if known else "no options"
            reason = f"drafter {named.value.name!r} has {has}"
        raise SettingsError(f"--draft-option {name}={value}: {reason}")


def _open(path: Path, formats: QuantFormats) -> GGUFFile:
    if not path.is_file():
        raise SettingsError(f"--draft-model {path}: there is no such file")
    return GGUFFile.open(path, formats.tensor_types())


def _reader_of(
    file: GGUFFile, named: Provided[DrafterSpec] | None, registry: Registry
) -> Provided[DrafterSpec]:
    """The drafter that reads a file: the ``named`` one, or the one that claims its architecture."""
    architecture = file.metadata.architecture
    known = [one for one in registry.drafters.values() if one.value.has_weights]
    readers = [one for one in known if one.value.reads(architecture)]
    if named is not None and (named in readers or not readers):
        return named
    if len(readers) == 1 and named is None:
        return readers[0]
    where = f"--draft-model {file.path}: architecture {architecture!r}"
    if readers:
        names = " and ".join(f"{one.value.name!r} of {one.source}" for one in readers)
        raise SettingsError(
            f"{where} is read by {names}"
            + (f", not by {named.value.name!r}" if named else "; choose one with --drafter")
        )
    patterns = ", ".join(
        f"{one.value.name} ({', '.join(one.value.architectures)})" for one in known
    )
    if any(architecture in one.value.architectures for one in registry.families.values()):
        raise SettingsError(
            f"{where} is a model, not a drafter: run it with -m; drafters: {patterns or 'none'}"
        )
    raise UnsupportedModelError(f"{where} is read by no drafter; installed: {patterns or 'none'}")


def _check(plan: DraftPlan, file: GGUFFile, facts: TargetFacts) -> None:
    """Whether a drafter fits its target."""
    config, where = facts.config, f"drafter {file.path} for {facts.path}"
    for layer in plan.features:
        if not 0 <= layer < config.layers:
            raise UnsupportedModelError(
                f"{where}: it reads features of layer {layer}, the model has {config.layers} layers"
            )
    for what, made_for, there in (
        ("rows of", plan.width, config.width),
        ("a vocabulary of", plan.vocabulary, config.vocabulary),
    ):
        if made_for is not None and made_for != there:
            raise UnsupportedModelError(
                f"{where}: it is made for {what} {made_for}, the model has {there}"
            )
    if file.path != facts.path:
        _check_tokens(file, facts, where)
    pool_layouts(StatePlan((*facts.state.layers, *plan.state)))  # raises if it cannot be stored


def _check_tokens(file: GGUFFile, facts: TargetFacts, where: str) -> None:
    """A drafter's file may hold the vocabulary; then it is the target's."""
    if _TOKENS not in file.metadata or _TOKENS not in facts.metadata:
        return
    mine, theirs = file.metadata.strings(_TOKENS), facts.metadata.strings(_TOKENS)
    if len(mine) != len(theirs):
        raise UnsupportedModelError(
            f"{where}: {_TOKENS} has {len(mine)} tokens, the model's has {len(theirs)}"
        )
    pairs = enumerate(zip(mine, theirs, strict=True))
    token = next((index for index, pair in pairs if pair[0] != pair[1]), None)
    if token is not None:
        raise UnsupportedModelError(
            f"{where}: {_TOKENS} has {mine[token]!r} as token {token}, the model's has "
            f"{theirs[token]!r}"
        )


def _shape(plan: DraftPlan, settings: Settings, path: Path) -> tuple[int, bool]:
    """Rows that are proposed for a sequence, and whether they are a tree."""
    if settings.draft_mode == "tree":
        return settings.draft_budget, True
    if settings.asked("draft_tokens") and settings.draft_tokens > plan.depth:
        raise SettingsError(
            f"--draft-tokens {settings.draft_tokens}: {path} proposes at most {plan.depth} tokens "
            f"(blocks of {plan.block} rows)"
        )
    return min(settings.draft_tokens, plan.depth), False
