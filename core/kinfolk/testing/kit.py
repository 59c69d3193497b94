"""The kit of one family under test: its tiny model as a file, loaded once for all checks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch

from kinfolk.descriptors import PolicySpec, TinyModel, resolve
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.text import open_text
from kinfolk.errors import PluginError
from kinfolk.gguf.file import GGUFFile
from kinfolk.guarded import GuardedFamily
from kinfolk.loader import PluginRecord, Provided
from kinfolk.nn.context import BuildContext
from kinfolk.plans import StatePlan
from kinfolk.registry import Registry
from kinfolk.residency.rules import least_chunks
from kinfolk.settings import Settings, load_settings
from kinfolk.state.chunks import SlotLease
from kinfolk.testing.driver import Driver
from kinfolk.testing.model_files import write_f32
from kinfolk.text.chat import ChatTemplate
from kinfolk.text.formats import ChatFormat
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.types import CHUNK_POSITIONS
from kinfolk.weights.loader import load_weights

BOUND: Final = 2e-4
"""Largest difference of a row's logits, relative to the largest logit. The order of float32 sums
causes less in a few layers, mistakes cause far more."""

ROOM: Final = 512
"""Positions of a sequence in most checks."""


class Kit:
    """The family called ``name`` among the installed ones, or in ``registry``.

    ``model`` names one of its tiny models, by default the first. Properties are computed at first
    use and raise errors of the family. Files are written to ``folder``. Models run on the CPU in
    float32.
    """

    def __init__(
        self, name: str, folder: Path, registry: Registry | None = None, model: str = ""
    ) -> None:
        self.name = name
        self.model = model
        self.folder = folder
        self._registry = registry
        self._loaded: dict[tuple[object, ...], LoadedModel] = {}
        self._linear: dict[tuple[int, ...], torch.Tensor] = {}

    # -- the family -----------------------------------------------------------------------------

    @cached_property
    def registry(self) -> Registry:
        return self._registry or Registry.discover(self.settings())

    @cached_property
    def provided(self) -> Provided[GuardedFamily]:
        """The family and its source. Raises :class:`PluginError` with the installed families if it
        is not among them."""
        if self.name in self.registry.families:
            return self.registry.families[self.name]
        there = ", ".join(sorted(self.registry.families)) or "none"
        broken = "".join(f"; {problem}" for problem in self.registry.problems())
        raise PluginError(f"no family {self.name!r} is installed; installed: {there}{broken}")

    @property
    def family(self) -> GuardedFamily:
        return self.provided.value

    @cached_property
    def record(self) -> PluginRecord:
        """The record of the plugin that provides the family."""
        plugin = self.provided.plugin
        return next(record for record in self.registry.records if record.name == plugin)

    @cached_property
    def tiny(self) -> TinyModel:
        tiny = self.family.tiny()
        if tiny is None:
            raise PluginError(
                f"family {self.name!r}: tiny() returned None; return a "
                "kinfolk.descriptors.TinyModel, the checks need one"
            )
        if not self.model:
            return tiny
        return next(tiny for tiny in (tiny, *tiny.others) if tiny.shape.name == self.model)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the family's tiny models."""
        return tuple(tiny.shape.name for tiny in (self.tiny, *self.tiny.others))

    # -- the tiny model -------------------------------------------------------------------------

    @cached_property
    def path(self) -> Path:
        return write_f32(self.tiny.shape, self.folder / f"{self.name}-tiny.gguf")

    @cached_property
    def file(self) -> GGUFFile:
        return GGUFFile.open(self.path, self.registry.formats().tensor_types())

    @cached_property
    def config(self) -> Any:
        return self.family.read_config(self.file.metadata)

    @property
    def plan(self) -> StatePlan:
        return self.loaded.plan

    @cached_property
    def window(self) -> int:
        """The widest window, 0 if there is none."""
        widest = max((window for window in self.plan.windows if window is not None), default=0)
        if widest > ROOM // 2:
            raise PluginError(
                f"family {self.name!r}: the tiny model has a window of {widest}; the checks cross "
                f"it many times, so it may be {ROOM // 2} at most"
            )
        return widest

    @cached_property
    def tokens(self) -> list[int]:
        """Tokens of a text that is longer than several chunks and every window."""
        return self.random_tokens(max(150, self.window + CHUNK_POSITIONS + 20), seed=0)

    def random_tokens(self, count: int, seed: int) -> list[int]:
        source = random.Random(f"{self.name} {seed}")
        return [source.randrange(self.config.vocabulary) for _ in range(count)]

    @cached_property
    def text(self) -> tuple[Tokenizer, ChatTemplate | None, ChatFormat]:
        """Tokenizer, chat template and chat format of the file."""
        return open_text(self.path, self.settings(), self.registry)

    # -- running it -----------------------------------------------------------------------------

    def settings(self, **options: Any) -> Settings:
        """Settings for the checks; the user's environment variables are ignored."""
        fixed = {
            "device": "cpu",
            "dtype": "f32",
            "kv_codec": "f32",
            "v_codec": "f32",
            "policy": (),
            "op": {},
        }
        sizes = {"slots": 6, "checkpoints": 4, "draft": "off", "model_family": self.name}
        return load_settings(**{**fixed, **sizes, **options})

    def paged_settings(self, **options: Any) -> Settings:
        """Settings of the tiny model, which has a layer that sees all positions, with the smallest
        budget, so that a long prompt is paged."""
        rule = self.loaded.mapping.rules[self.plan.windows.index(None)]
        budget = least_chunks(rule.sink, rule.tail, burst=1) * CHUNK_POSITIONS
        paging = {"kvflash": budget, "kvflash_burst": 1, "kvflash_tau": 8, "kvflash_host": 0.1}
        context = self.loaded.limits.context
        return self.settings(slots=2, context=context, **paging, **options)

    @cached_property
    def loaded(self) -> LoadedModel:
        return self.load()

    def load(
        self, path: Path | None = None, policy: PolicySpec | None = None, **options: Any
    ) -> LoadedModel:
        """The tiny model, or that of ``path``, with a policy and further settings."""
        key = (path, policy, *sorted(options.items()))
        if key not in self._loaded:
            registry = self.registry
            if policy is not None:
                options["policy"] = (policy.name,)
                registry = replace(
                    registry,
                    policies={policy.name: Provided(policy, "kinfolk", "plugin 'kinfolk'")},
                )
            settings = self.settings(context=self._context(), **options)
            self._loaded[key] = load_model(path or self.path, settings, registry)
        return self._loaded[key]

    def keeping_bytes(self, path: Path) -> LoadedModel:
        """The model of a file with ``--weights blocks``: quantised matrices stay quantised."""
        loaded = self.load(path)
        formats = self.registry.formats()
        file = GGUFFile.open(path, formats.tensor_types())
        weights = load_weights(
            self.family.weight_plan(loaded.config, file.inventory),
            file.inventory,
            formats,
            keep_quantised=True,
        )
        context = BuildContext(
            loaded.ops, loaded.device, loaded.dtype, loaded.plan, loaded.limits.context
        )
        return replace(loaded, model=self.family.build(loaded.config, weights, context))

    def with_features(self, layers: Sequence[int], *, final: bool = False) -> LoadedModel:
        """The tiny model, loaded once more, with these features."""
        loaded = load_model(self.path, self.settings(context=self._context()), self.registry)
        loaded.model.features(layers, final=final)
        return loaded

    def driver(self, loaded: LoadedModel | None = None, *, replays: bool = False) -> Driver:
        return Driver(loaded or self.loaded, replays=replays)

    def logits(self, loaded: LoadedModel, tokens: Sequence[int]) -> torch.Tensor:
        """Logits float32 [tokens, vocabulary] of a text in one step without other sequences."""
        drive = self.driver(loaded)
        lease = drive.open(len(tokens))
        return drive.feed({lease: tokens})[lease]

    def linear(self, tokens: Sequence[int]) -> torch.Tensor:
        """:meth:`logits` of the tiny model, which other ways to compute them must equal."""
        wanted = tuple(tokens)
        for known, logits in self._linear.items():
            if known[: len(wanted)] == wanted:
                return logits[: len(wanted)]
        self._linear[wanted] = self.logits(self.loaded, wanted)
        return self._linear[wanted]

    def feed_in(
        self, drive: Driver, lease: SlotLease, tokens: Sequence[int], sizes: Sequence[int]
    ) -> torch.Tensor:
        """Logits of tokens fed in slices of these ``sizes``, used in turn."""
        parts: list[torch.Tensor] = []
        start = 0
        while start < len(tokens):
            size = sizes[len(parts) % len(sizes)]
            parts.append(drive.feed({lease: tokens[start : start + size]})[lease])
            start += size
        return torch.cat(parts)

    def reference(self, name: str) -> Callable[..., Any]:
        """A function that the tiny model names."""
        function: Callable[..., Any] = resolve(name)
        return function

    def _context(self) -> int:
        context: int = self.config.context
        if context < ROOM:
            raise PluginError(
                f"family {self.name!r}: the tiny model has a context of {context}; the checks "
                f"need {ROOM}"
            )
        return min(context, 2 * ROOM)


def assert_same(found: torch.Tensor, expected: torch.Tensor, bound: float = BOUND) -> None:
    """Assert that rows of logits, or others, are equal within ``bound``; the message names the
    first wrong row and the worst."""
    assert found.shape == expected.shape
    errors = (found - expected).abs().amax(1) / expected.abs().amax(1).clamp_min(1e-30)
    errors = errors.nan_to_num(float("inf"))
    wrong = (errors > bound).nonzero().flatten().tolist()
    if wrong:
        worst = int(errors.argmax())
        raise AssertionError(
            f"{len(wrong)} of {len(errors)} rows differ, the first is row {wrong[0]}; row {worst} "
            f"is off by {float(errors[worst]):.1e} of its largest number, allowed is {bound:.0e}"
        )
