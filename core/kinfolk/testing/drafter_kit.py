"""The kit of one drafter under test: its tiny file, and a tiny target that it drafts for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch

from kinfolk.descriptors import DrafterSpec, resolve
from kinfolk.draft_api import DraftPlan, Proposals, TargetFacts, TinyDrafter
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.preparing import prepare_model
from kinfolk.errors import PluginError
from kinfolk.gguf.file import GGUFFile
from kinfolk.guarded import GuardedDrafter, prepare_drafter
from kinfolk.loader import PluginRecord, Provided
from kinfolk.plans import Codec, Recurrent
from kinfolk.registry import Registry
from kinfolk.settings import Settings, load_settings
from kinfolk.testing.draft_driver import DraftDriver
from kinfolk.testing.kit import Kit

STATE_BOUND: Final = 2e-4
"""Largest difference of a tensor of state, relative to its largest number: the order of float32
sums causes less."""

SCORE_BOUND: Final = 1e-3
"""Largest difference of two scores, which are logarithms."""

ROWS_TREE: Final = (-1, 0, 0, 1, 2, 2, 5)
"""Parents of the rows of a tree, in most checks."""

ROWS_PATHS: Final = ((0,), (0, 1), (0, 1, 3), (0, 2, 4), (0, 2, 5, 6))


class DrafterKit:
    """The drafter called ``name`` among the installed ones, or in ``registry``.

    ``target`` is (family, tiny model) of what it drafts for, in place of what its spec states; see
    :meth:`targets`. Properties are computed at first use and raise errors of the drafter. Files are
    written to ``folder``. Target and drafter run on the CPU in float32.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        registry: Registry | None = None,
        target: tuple[str, str] | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self._registry, self._target = registry, target
        self._loaded: dict[tuple[object, ...], LoadedModel] = {}

    # -- the drafter ----------------------------------------------------------------------------

    @cached_property
    def registry(self) -> Registry:
        return self._registry or Registry.discover(load_settings())

    @cached_property
    def provided(self) -> Provided[DrafterSpec]:
        """The drafter and its source; :class:`SettingsError` if it is not installed."""
        return self.registry.drafter(self.name)

    @property
    def spec(self) -> DrafterSpec:
        return self.provided.value

    @cached_property
    def record(self) -> PluginRecord:
        """The record of the plugin that provides the drafter."""
        plugin = self.provided.plugin
        return next(record for record in self.registry.records if record.name == plugin)

    @cached_property
    def tiny(self) -> TinyDrafter:
        """What the spec states; a drafter of the host needs nothing."""
        stated = self.spec.tiny
        if stated is None and self.spec.has_weights:
            raise PluginError(
                f"drafter {self.name!r}: its DrafterSpec has no tiny; state a "
                "kinfolk.draft_api.TinyDrafter, the checks need one"
            )
        tiny = stated or TinyDrafter()
        if self._target is None:
            return tiny
        family, model = self._target
        return replace(tiny, family=family, model=model)

    def targets(self) -> tuple[tuple[str, str], ...]:
        """(family, tiny model) of every installed tiny model whose own file holds the drafter;
        empty if it has a file of its own, or its spec names the family."""
        tiny = self.spec.tiny
        if tiny is None or tiny.write or tiny.family:
            return ()
        return tuple(
            (family, model)
            for family in sorted(self.registry.families)
            for model in self._models(family)
            if self._is_part_of(family, model)
        )

    def _models(self, family: str) -> tuple[str, ...]:
        try:
            return Kit(family, self.folder, self.registry).models
        except PluginError:  # the checks of the family report it
            return ()

    def _is_part_of(self, family: str, model: str) -> bool:
        folder = self.folder / model
        folder.mkdir()
        kit = DrafterKit(self.name, folder, self.registry, (family, model))
        return kit.prepare(kit.file) is not None

    @cached_property
    def target(self) -> Kit:
        """The kit of the family whose tiny model is drafted for."""
        name = self.tiny.family
        if not name:
            families = sorted(self.registry.families.items())
            found = (name for name, each in families if each.value.tiny() is not None)
            name = next(found, "")
            if not name:
                raise PluginError(
                    f"drafter {self.name!r}: no family with a tiny model is installed, the checks "
                    "need one to draft for"
                )
        folder = self.folder / "target"
        folder.mkdir(exist_ok=True)
        return Kit(name, folder, self.registry, self.tiny.model)

    # -- with weights ---------------------------------------------------------------------------

    @cached_property
    def path(self) -> Path:
        """The file with the drafter's weights, which may be the target's own."""
        if not self.tiny.write:
            return self.target.path
        path = self.folder / f"{self.name}-tiny.gguf"
        resolve(self.tiny.write)(self.target.path, path)
        if not path.is_file():
            raise PluginError(f"drafter {self.name!r}: {self.tiny.write} wrote no file {path}")
        return path

    @property
    def own_file(self) -> bool:
        return self.path != self.target.path

    @cached_property
    def file(self) -> GGUFFile:
        return GGUFFile.open(self.path, self.registry.formats().tensor_types())

    @cached_property
    def facts(self) -> TargetFacts:
        """What the drafter is told of the tiny target."""
        ready = prepare_model(self.target.path, self.target.settings(), self.registry)
        return TargetFacts(
            path=self.target.path,
            family=ready.family.name,
            metadata=ready.file.metadata,
            config=ready.config,
            state=ready.plan,
            context=ready.memory.limits.context,
            codec=Codec("f32"),
        )

    def prepare(self, file: GGUFFile, facts: TargetFacts | None = None) -> DraftPlan | None:
        """What the drafter answers for a file; its refusal is an error of the project."""
        return prepare_drafter(self.spec, self.provided.source, file, facts or self.facts)

    @cached_property
    def plan(self) -> DraftPlan:
        plan = self.prepare(self.file)
        if plan is None:
            raise PluginError(f"drafter {self.name!r}: prepare finds no drafter in its tiny file")
        return plan

    @property
    def recurrent(self) -> bool:
        return any(isinstance(layer, Recurrent) for layer in self.plan.state)

    # -- running it -----------------------------------------------------------------------------

    def settings(self, **options: Any) -> Settings:
        """Settings of the target with this drafter."""
        asked: dict[str, Any] = {"context": self.target.loaded.limits.context}
        # Widths by cost follow the clock, so a run might draft nothing.
        asked |= {"draft": self.name, "draft_widths": "fixed"}
        if self.spec.has_weights and self.own_file:
            asked["draft_model"] = self.path
        return self.target.settings(**{**asked, **options})

    @property
    def loaded(self) -> LoadedModel:
        """The tiny target with the drafter, a tree as large as those of the checks."""
        return self.load(draft_mode="tree", draft_budget=15)

    def load(self, **options: Any) -> LoadedModel:
        key = tuple(sorted(options.items()))
        if key not in self._loaded:
            settings = self.settings(**options)
            self._loaded[key] = load_model(self.target.path, settings, self.registry)
        return self._loaded[key]

    def driver(self, *, replays: bool = False) -> DraftDriver:
        return DraftDriver(self.loaded, replays=replays)

    def states_trees(self) -> bool:
        """Whether proposals come with parents, so that no chain can be taken of them."""
        drive = self.driver()
        lease = drive.open()
        drive.feed({lease: self.tokens(3)})
        return drive.propose({lease: self.tokens(1)[0]}).parents is not None

    def host(self) -> GuardedDrafter:
        """A drafter of the host, made for the tiny target."""
        info = self.target.loaded.info
        return GuardedDrafter.create(self.spec, self.provided.source, info)

    def tokens(self, count: int, seed: int = 0) -> list[int]:
        return self.target.random_tokens(count, seed)


def assert_same_state(
    found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """Assert that two sequences keep the same of a drafter; the message names the first tensor
    that differs."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        other = expected[name].double()
        error = (tensor.double() - other).abs().max() if tensor.numel() else torch.zeros(())
        scale = other.abs().max().clamp_min(1e-30) if tensor.numel() else torch.ones(())
        share = float((error / scale).nan_to_num(float("inf")))
        assert share <= STATE_BOUND, (
            f"the state differs: {name} is off by {share:.1e} of its largest number, allowed is "
            f"{STATE_BOUND:.0e}"
        )


def assert_same_proposals(found: Proposals, expected: Proposals) -> None:
    """Assert that lanes [L] propose the same; tokens with equal scores may change places."""
    assert found.tokens.shape == expected.tokens.shape
    assert bool(found.scores.isfinite().all()), "the scores are not finite: what is NaN was read"
    error = float((found.scores - expected.scores).abs().max())
    assert error <= SCORE_BOUND, f"the proposals differ: a score is off by {error:.1e}"
    other = found.tokens != expected.tokens
    gaps = expected.scores.diff(dim=2).abs()
    tied = torch.zeros_like(other)
    tied[:, :, 1:] |= gaps <= SCORE_BOUND
    tied[:, :, :-1] |= gaps <= SCORE_BOUND
    # The last candidate may be tied with one that was left out.
    tied[:, :, -1] = True
    wrong = (other & ~tied).nonzero().tolist()
    if found.tokens.shape[2] == 1:
        wrong = other.nonzero().tolist()
    assert not wrong, f"the proposals differ: other tokens at (lane, depth, column) {wrong[0]}"
