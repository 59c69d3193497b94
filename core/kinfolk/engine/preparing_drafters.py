"""Prepares drafters: which of them draft for a model, their files, and whether they fit it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from kinfolk.descriptors import DrafterSpec
from kinfolk.draft_api import DraftPlan, TargetFacts
from kinfolk.errors import DrafterAbsent, KinfolkError, SettingsError, UnsupportedModelError
from kinfolk.gguf.file import GGUFFile
from kinfolk.guarded import prepare_drafter as ask_for_plan
from kinfolk.loader import Provided
from kinfolk.plans import StatePlan, WeightPlan
from kinfolk.quant.formats import QuantFormats
from kinfolk.registry import Registry
from kinfolk.setting_values import DRAFT_WORDS
from kinfolk.settings import Settings
from kinfolk.state.layout import pool_layouts

log = logging.getLogger(__name__)

HOST_DRAFT: Final = 15
"""Most tokens that drafters of the host draft, unless it is asked for: a step of 16 rows takes
little longer than one of a few."""

AUTO_HOST: Final = "ngram"
"""The drafter of the host that ``--draft auto`` adds."""

FILE_SUFFIXES: Final = ("-draft.gguf", ".dflash.gguf")
"""``--draft auto`` looks for a drafter in NAME and one of these, beside NAME.gguf."""

_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_TOKENS: Final = "tokenizer.ggml.tokens"
_WISHES: Final = (
    *("draft_mode", "draft_tokens", "draft_budget"),
    *("draft_widths", "draft_width", "draft_option"),
)


@dataclass(frozen=True, slots=True)
class PreparedDrafter:
    """A drafter that is checked and planned; its weights are not read yet. It proposes a chain of
    ``chain`` tokens or a tree of ``tree``, 0 = never; ``confidence``: with its chances. ``file``
    may be the target's own."""

    spec: DrafterSpec
    source: str
    file: GGUFFile
    plan: DraftPlan
    chain: int
    tree: int
    confidence: bool = False

    @property
    def arena_rows(self) -> int:
        """Rows of a lane in the arena: those of its block, and those of its tree."""
        return max(self.plan.block, self.tree + 1 if self.tree else 0)

    def weights_in(self, file: GGUFFile, target: WeightPlan) -> WeightPlan:
        """What to load. In the target's own ``file``, the target's weights are no strangers."""
        mine = self.plan.weights
        if self.file is not file:
            return mine
        others = {spec.tensor: "the model's own" for spec in target}
        return replace(mine, ignored={**others, **target.ignored, **mine.ignored})


@dataclass(frozen=True, slots=True)
class PreparedDrafters:
    """What drafts for a model: a drafter with weights or none, and drafters of the host, in the
    order in which they are tried, for at most ``host_rows`` tokens. ``host_first``: they are named
    before the one with weights."""

    with_weights: PreparedDrafter | None = None
    hosts: tuple[Provided[DrafterSpec], ...] = ()
    host_rows: int = 0
    host_first: bool = False

    @property
    def drafts(self) -> bool:
        """Whether anything drafts."""
        return self.with_weights is not None or bool(self.hosts)

    def beside(self, weights: WeightPlan) -> WeightPlan:
        """The weights of the target and of the drafter, to reckon with both."""
        drafter = self.with_weights
        return weights if drafter is None else WeightPlan((*weights, *drafter.plan.weights))

    def behind(self, state: StatePlan) -> StatePlan:
        """The target's state with the drafter's behind it."""
        drafter = self.with_weights
        return state if drafter is None else StatePlan((*state.layers, *drafter.plan.state))

    @property
    def arena_rows(self) -> int:
        """Rows of a lane in the arena."""
        return 0 if self.with_weights is None else self.with_weights.arena_rows

    def close(self, model: GGUFFile) -> None:
        """Close the drafter's file, unless it is that of the ``model``."""
        if self.with_weights is not None and self.with_weights.file is not model:
            self.with_weights.file.close()

    def report(self) -> list[dict[str, Any]]:
        """What drafts, for people and for JSON: names, files, bytes of tensors in them, and the
        most tokens of a chain and of a tree."""
        found, rows = self.with_weights, []
        if found is not None:
            tensors = {spec.tensor for spec in found.plan.weights}
            inventory = found.file.inventory
            nbytes = sum(inventory[name].nbytes for name in tensors if name in inventory)
            more = {"file": str(found.file.path), "bytes": nbytes}
            rows.append(_row(found.spec.name, found.source, found.chain, found.tree) | more)
        hosts = [_row(one.value.name, one.source, self.host_rows, 0) for one in self.hosts]
        return [*hosts, *rows] if self.host_first else [*rows, *hosts]


def _row(name: str, source: str, chain: int, tree: int) -> dict[str, Any]:
    return {"name": name, "source": source, "chain": chain, "tree": tree}


def draft_line(row: Mapping[str, Any]) -> str:
    """A row of :meth:`PreparedDrafters.report` in words."""
    shapes = {"chains": row["chain"], "trees": row["tree"]}
    most = " or ".join(f"{shape} of up to {rows}" for shape, rows in shapes.items() if rows)
    weights = f", {row['bytes'] / 2**20:.1f} MiB in {row['file']}" if "file" in row else ""
    return f"{row['name']} of {row['source']}: {most} tokens{weights}"


def named_drafters(settings: Settings, registry: Registry) -> list[Provided[DrafterSpec]]:
    """The drafters that ``--draft`` names; :class:`SettingsError` for one that is not installed."""
    return [registry.drafter(name) for name in settings.draft if name not in DRAFT_WORDS]


def prepare_drafters(
    settings: Settings,
    registry: Registry,
    formats: QuantFormats,
    file: GGUFFile,
    facts: TargetFacts,
) -> PreparedDrafters:
    """The drafters that the settings ask for; ``file`` is the target's.

    Raises :class:`SettingsError`, :class:`ModelFormatError` or :class:`UnsupportedModelError`,
    which name file, key and numbers. What ``--draft auto`` finds by itself and cannot use is only
    warned of, unless it is for what the user asked of it.
    """
    _check_invariance(settings)
    named = named_drafters(settings, registry)
    auto = settings.draft == ("auto",)
    if settings.draft == ("off",) or (auto and settings.batch_invariant):
        _check_options(settings, None)
        return PreparedDrafters()
    search = _Search(settings, registry, formats, file, facts)
    if auto:
        found = search.by_itself()
        hosts = [registry.drafters[name] for name in (AUTO_HOST,) if name in registry.drafters]
    else:
        hosts = [one for one in named if not one.value.has_weights]
        found = search.among(named, alone=not hosts)
    spec = None if found is None else found.spec
    _check_options(settings, spec or (named[0].value if named else None))
    return PreparedDrafters(
        found,
        tuple(hosts),
        (settings.draft_tokens or HOST_DRAFT) if hosts else 0,
        bool(named) and not named[0].value.has_weights,
    )


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for a drafter with weights."""

    settings: Settings
    registry: Registry
    formats: QuantFormats
    file: GGUFFile
    facts: TargetFacts

    def by_itself(self) -> PreparedDrafter | None:
        """That of ``--draft-model``, or else of a file beside the model's, or of the model's."""
        if self.settings.draft_model is not None:
            file = self._open(self.settings.draft_model)
            return self._prepared(file, _reader_of(file, [], self.registry))
        for path in files_beside(self.file.path):
            try:
                file = self._open(path)
                one = _reader_of(file, [], self.registry)
            except KinfolkError as error:
                _warn(path, error)
                continue
            try:
                return self._prepared(file, one)
            except KinfolkError as error:
                self._pass_over(path, error)
        for one in self.registry.drafters.values():
            if one.value.has_weights and not one.value.architectures:
                try:
                    return self._prepared(self.file, one)
                except DrafterAbsent:
                    continue
                except KinfolkError as error:
                    self._pass_over(self.file.path, error)
        return None

    def _pass_over(self, path: Path, error: KinfolkError) -> None:
        """Warn of a drafter that does not fit; but what is wrong with the settings is an error, if
        the user made any for a drafter."""
        refused = isinstance(error, SettingsError) and not isinstance(error, DrafterAbsent)
        if refused and any(map(self.settings.asked, _WISHES)):
            raise error
        _warn(path, error)

    def among(self, named: list[Provided[DrafterSpec]], *, alone: bool) -> PreparedDrafter | None:
        """The first of the ``named`` ones that the files hold. Raises if they hold none and there
        is no other drafter (``alone``)."""
        weighted = [one for one in named if one.value.has_weights]
        if self.settings.draft_model is not None:
            names = ",".join(self.settings.draft)
            if not weighted:
                raise SettingsError(
                    f"--draft-model {self.settings.draft_model}: no drafter of --draft {names} has "
                    "weights; leave out one of them"
                )
            file = self._open(self.settings.draft_model)
            return self._prepared(file, _reader_of(file, weighted, self.registry))
        absences = []
        for one in weighted:
            try:
                return self._prepared(*self._file_of(one))
            except DrafterAbsent as error:
                absences.append(str(error))
        if absences and alone:
            raise DrafterAbsent("; ".join(absences))
        for absence in absences:
            log.warning("%s", absence)
        return None

    def _file_of(self, one: Provided[DrafterSpec]) -> tuple[GGUFFile, Provided[DrafterSpec]]:
        """The file that a drafter would be in: the model's own, or one beside it."""
        if one.value.architectures:
            for path in files_beside(self.file.path):
                file = self._open(path)
                if one.value.reads(file.metadata.architecture):
                    return file, one
            raise self._holds_none(self.file, one)
        return self.file, one

    def _open(self, path: Path) -> GGUFFile:
        if not path.is_file():
            raise SettingsError(f"--draft-model {path}: there is no such file")
        return GGUFFile.open(path, self.formats.tensor_types())

    def _prepared(self, file: GGUFFile, one: Provided[DrafterSpec]) -> PreparedDrafter:
        """Raises :class:`DrafterAbsent` if the file holds no such drafter."""
        plan = ask_for_plan(one.value, one.source, file, self.facts)
        if plan is None:
            raise self._holds_none(file, one)
        _check(plan, file, self.facts)
        chain, tree = _shape(plan, self.settings, file.path)
        confidence = self.settings.draft_widths == "confidence"
        return PreparedDrafter(one.value, one.source, file, plan, chain, tree, confidence)

    def _holds_none(self, file: GGUFFile, one: Provided[DrafterSpec]) -> DrafterAbsent:
        flag = "" if self.settings.draft_model else "; name the file that does with --draft-model"
        return DrafterAbsent(f"{file.path} holds no drafter {one.value.name!r}{flag}")


def _warn(path: Path, error: KinfolkError) -> None:
    log.warning("%s does not draft for this model: %s", path, error)


def files_beside(path: Path) -> Iterator[Path]:
    """The files that may hold a drafter for the model in ``path``, by their names."""
    stem = _PART.sub("", path.name.removesuffix(".gguf"))
    return filter(Path.is_file, (path.with_name(stem + suffix) for suffix in FILE_SUFFIXES))


def _check_invariance(settings: Settings) -> None:
    """A drafted row's numbers depend on the number of rows, which the drafter chooses."""
    if not settings.batch_invariant or settings.draft == ("off",):
        return
    asked = "" if settings.draft_model is None else f"--draft-model {settings.draft_model}"
    if settings.draft != ("auto",):
        asked = f"--draft {','.join(settings.draft)}"
    if asked:
        raise SettingsError(
            f"{asked}: nothing can be drafted with --batch-invariant; leave out one of them"
        )


def _check_options(settings: Settings, spec: DrafterSpec | None) -> None:
    known = () if spec is None else spec.options
    for name, value in settings.draft_option.items():
        if name in known:
            continue
        reason = "there is no drafter to have it"
        if spec is not None:
            has = f"the options {', '.join(known)}" if known else "no options"
            reason = f"drafter {spec.name!r} has {has}"
        raise SettingsError(f"--draft-option {name}={value}: {reason}")


def _reader_of(
    file: GGUFFile, named: list[Provided[DrafterSpec]], registry: Registry
) -> Provided[DrafterSpec]:
    """The drafter that reads a file: one of the ``named`` ones, or else of all."""
    architecture = file.metadata.architecture
    known = [one for one in registry.drafters.values() if one.value.has_weights]
    readers = [one for one in known if one.value.reads(architecture)]
    for one in named:
        if one in readers or not readers:
            return one
    if len(readers) == 1 and not named:
        return readers[0]
    where = f"--draft-model {file.path}: architecture {architecture!r}"
    if readers:
        names = " and ".join(f"{one.value.name!r} of {one.source}" for one in readers)
        others = " or ".join(repr(one.value.name) for one in named)
        raise SettingsError(
            f"{where} is read by {names}"
            + (f", not by {others}" if named else "; choose one with --draft")
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
    if plan.block > 1 and plan.fill >= config.vocabulary:
        raise UnsupportedModelError(
            f"{where}: it fills blocks with token {plan.fill}, the model has {config.vocabulary}"
        )
    if file.path != facts.path:
        _check_tokens(file, facts, where)
    try:
        state = StatePlan((*facts.state.layers, *plan.state))
    except ValueError as error:
        raise UnsupportedModelError(
            f"{where}: its state cannot follow the model's: {error}"
        ) from None
    pool_layouts(state)  # raises if it cannot be stored


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


def _shape(plan: DraftPlan, settings: Settings, path: Path) -> tuple[int, int]:
    """Tokens of a chain and of a tree that are proposed for a sequence, 0 = none."""
    mode = _mode(plan, settings, path)
    if mode == "tree":
        return 0, settings.draft_budget
    asked = settings.draft_tokens
    if asked is not None and asked > plan.depth and settings.asked("draft_tokens"):
        raise SettingsError(
            f"--draft-tokens {asked}: {path} proposes at most {plan.depth} tokens "
            f"(blocks of {plan.block} rows)"
        )
    chain = min(asked or plan.depth, plan.depth)
    return chain, settings.draft_budget if mode == "auto" else 0


def _mode(plan: DraftPlan, settings: Settings, path: Path) -> Literal["auto", "chain", "tree"]:
    """What a drafter proposes: trees are chosen by cost, and need several candidates."""
    if settings.draft_widths == "confidence" and settings.draft_mode == "tree":
        raise SettingsError("--draft-widths confidence is for chains, not for --draft-mode tree")
    if settings.draft_mode == "chain" and plan.own_trees:
        raise SettingsError(
            f"--draft-mode chain: the drafter in {path} proposes trees only; leave it out, or say "
            "--draft-mode tree"
        )
    if settings.draft_mode != "auto":
        return settings.draft_mode
    if plan.own_trees:
        return "tree"
    by_cost = settings.draft_widths == "cost" and settings.draft_width is None
    return "auto" if by_cost and plan.columns > 1 else "chain"
