"""Loads a model file: a model on its device with ops, hooks and a plan of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kinfolk.descriptors import Family
from kinfolk.engine.buckets import MAX_FETCH_ROWS, usual_draft
from kinfolk.engine.chunk_scoring import PROBE_CHUNKS, probe_scorers
from kinfolk.engine.drafting import LoadedDrafter
from kinfolk.engine.memory import FEWEST_CAPTURES
from kinfolk.engine.oracle_scorer import OracleScorer
from kinfolk.engine.pinning import lock_limit, refuse_unpinnable, try_to_pin
from kinfolk.engine.preparing import Prepared, prepare_model
from kinfolk.engine.preparing_drafters import PreparedDrafters
from kinfolk.engine.qk_scorer import QkScorer
from kinfolk.engine.sizing import GIB
from kinfolk.engine.step_ops import StepOps
from kinfolk.errors import CapacityError, SettingsError, UnsupportedModelError
from kinfolk.experts.cache import ExpertCache
from kinfolk.gguf.file import GGUFFile
from kinfolk.guarded import build_drafter
from kinfolk.hooks import ModelHookCaller
from kinfolk.model_api import Model, ModelInfo
from kinfolk.nn.context import BuildContext
from kinfolk.nn.prompt_reading import PromptReading
from kinfolk.nn.queries import QueryKind, ScoredAttention
from kinfolk.ops.binding import Ops
from kinfolk.plans import Placement, SlotMapping, StateLimits, StatePlan, WeightPlan
from kinfolk.registry import Registry
from kinfolk.residency.rules import ResidencyRules
from kinfolk.settings import Settings
from kinfolk.state.host_rows import HostLayout, HostRows
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.state import State
from kinfolk.weights.loader import Weights, load_weights

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is loaded but has no state yet."""

    file: GGUFFile
    family: Family
    config: Any
    info: ModelInfo
    model: Model
    hooks: ModelHookCaller
    ops: Ops
    step_ops: StepOps
    plan: StatePlan
    limits: StateLimits
    mapping: SlotMapping
    device: torch.device
    dtype: torch.dtype
    slice_rows: int
    captures: int = FEWEST_CAPTURES
    """Most captured steps that are kept."""
    graphs: bool = False
    """Whether decoding runs in buckets, captured if the device supports graphs."""
    batch_invariant: bool = False
    """Whether a row's numbers must not depend on the other rows of its step."""
    packed: Mapping[str, int] = field(default_factory=dict)
    """Number of packed tensors, by format."""
    refused: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of tensors that cannot be packed, by format and reason: they are stored dense."""
    residency: ResidencyRules | None = None
    """The budget of sequences that are longer; ``None``: all chunks stay on the device."""
    queries: QueryKind | None = None
    """Those of the layers whose attention scores chunks, if ``limits.scored`` names any."""
    drafter: LoadedDrafter | None = None
    drafters: PreparedDrafters = field(default_factory=PreparedDrafters)
    """All that draft: those of the host too."""
    real_rows: torch.Tensor | None = None
    """Where steps write how many of their rows are no padding, for experts."""
    experts: ExpertCache | None = None
    """The experts' bays and homes; ``None``: all are on the device and nobody counts their uses,
    or there are none."""
    source: ModelSource | None = None
    """Loads the same model again, with the same plans."""

    @property
    def usual_draft(self) -> int:
        """Rows of a usual draft, see :func:`kinfolk.engine.buckets.usual_draft`."""
        drafter = self.drafter
        host = self.drafters.host_rows
        return host if drafter is None else usual_draft(host, drafter.chain, drafter.tree)

    def new_state(self) -> tuple[KVCacheManager, State]:
        """Empty state, and the manager of its blocks, tables and checkpoints."""
        kv_cache = KVCacheManager(
            self.plan.windows,
            self.limits,
            recurrent=self.plan.has_recurrent,
            rules=self.mapping.rules,
            host=HostRows(HostLayout.of(self.plan), self.limits.host_bytes),
        )
        state = State(self.plan, self.limits, self.device)
        state.real_rows = self.real_rows
        if self.limits.scored is not None and self.queries is not None:
            kind = OracleScorer if self.limits.scored.exact else QkScorer
            state.scorer = kind(
                self.ops,
                self.plan,
                self.limits.scored.layers,
                self.queries,
                places=self.limits.digests,
                slots=self.limits.query_slots,
                device=self.device,
            )
        return kv_cache, state


def load_model(
    path: Path,
    settings: Settings,
    registry: Registry,
    progress: Progress | None = None,
    *,
    beside: int = 0,
    shared: SharedWeights | None = None,
    there: int = 0,
    keep_profile: bool = True,
) -> LoadedModel:
    """Load the model of a file. Everything is checked before weights are read; raises as
    :func:`kinfolk.engine.preparing.prepare_model` does. ``beside``: bytes of the device that
    another model of this process has taken of what ``--memory`` allows. ``shared``: weights that
    serve other models too, of which ``there`` bytes are on the device already. ``keep_profile``:
    ``--expert-profile`` is written, not only read."""
    ready = prepare_model(path, less_memory(settings, beside), registry, there=there)
    if (profile := ready.experts.profile) is not None:
        profile.kept = keep_profile
        if keep_profile:
            profile.require_writable()
    graphs = _wants_graphs(settings, ready.device)
    # cuBLAS adds the parts of a split-K product in float32.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if ready.device.type == "cuda":
        usable = None if settings.memory is None else ready.memory.usable + beside
        limit_memory(ready.device, usable)
    if ready.device.type == "cuda" and (ready.residency is not None or ready.experts.partial):
        pinned = ready.experts.host_bytes + (ready.memory.beside if ready.residency else 0)
        refuse_unpinnable(pinned, lock_limit(), try_to_pin)
    return ModelSource(ready, graphs, settings.batch_invariant, shared=shared).load(progress)


def limit_memory(device: torch.device, usable: int | None) -> None:
    """Let this process allocate ``usable`` bytes of a GPU; None: all of them, whatever a model that
    was loaded before was allowed. Other programs and the driver's own memory are not covered."""
    total = torch.cuda.get_device_properties(device).total_memory
    share = 1.0 if usable is None else min(1.0, usable / total)
    torch.cuda.set_per_process_memory_fraction(share, device)


def less_memory(settings: Settings, taken: int) -> Settings:
    """The settings where other models have taken bytes of what ``--memory`` allows."""
    if settings.memory is None or not taken:
        return settings
    left = settings.memory - taken / GIB
    if left <= 0:
        raise CapacityError(
            f"--memory {settings.memory} leaves nothing for the model: what reads beside it "
            f"takes {taken / GIB:.2f} GiB"
        )
    return settings.model_copy(update={"memory": left})


class SharedWeights:
    """The weights of a file, read once for several models that store them alike."""

    def __init__(self) -> None:
        self._weights: Weights | None = None

    def load(self, read: Callable[[], Weights]) -> Weights:
        """The weights; they are read if nobody has them."""
        if self._weights is None:
            self._weights = read()
        return self._weights

    def free(self) -> None:
        """No model has them any more."""
        self._weights = None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Reads the weights of a planned model, as often as it is asked to."""

    ready: Prepared
    graphs: bool
    batch_invariant: bool
    reading: PromptReading | None = None
    """The model scores the tokens of texts that it reads."""
    shared: SharedWeights | None = None
    """The weights are those of other models too."""

    def load(self, progress: Progress | None = None, *, drafter: bool = True) -> LoadedModel:
        """Build the model over its weights, with its drafter or with room for it."""
        ready = self.ready
        experts = ready.experts
        placement = experts.placement if experts.in_records else None

        def read() -> Weights:
            landing = experts.landing
            return _load(ready, ready.weights, ready.file, progress, placement, landing)

        weights = read() if self.shared is None else self.shared.load(read)
        config, limits = ready.config, ready.memory.limits
        scored = None if limits.scored is None else ScoredAttention(limits.scored.layers)
        context = self._context(scored)
        if any(experts.sizes.layers):
            # The largest number: until a step writes its own, no row is padding.
            most = torch.iinfo(torch.int32).max
            rows = torch.full((1,), most, dtype=torch.int32, device=ready.device)
            fetched = MAX_FETCH_ROWS if experts.steps_count else 0
            context = replace(context, placement=experts.placement, rows=rows, fetch_rows=fetched)
        model = ready.family.build(config, weights, context)
        _ask_for_features(ready, model)
        queries = None if scored is None else _query_kind(ready.family, scored)
        if ready.residency is not None:
            probe_scorers(ready.hooks, _example_scorer(ready, queries))
        loaded = LoadedModel(
            file=ready.file,
            family=ready.family,
            config=config,
            info=ready.info,
            model=model,
            hooks=ready.hooks,
            ops=ready.ops,
            step_ops=StepOps.bind(ready.ops, ready.device),
            plan=ready.plan,
            limits=limits,
            mapping=ready.hooks.map_slots(ready.plan, limits),
            device=ready.device,
            dtype=ready.dtype,
            slice_rows=ready.slice_rows,
            captures=ready.captures,
            graphs=self.graphs,
            batch_invariant=self.batch_invariant,
            packed=weights.packed,
            refused=weights.refused,
            residency=ready.residency,
            queries=queries,
            drafters=ready.drafters,
            real_rows=context.rows,
            experts=weights.experts,
            source=self,
        )
        return self.with_drafter(loaded, progress) if drafter else loaded

    def with_drafter(self, loaded: LoadedModel, progress: Progress | None = None) -> LoadedModel:
        """``loaded`` with its drafter with weights, if there is one."""
        ready, found = self.ready, self.ready.drafters.with_weights
        if found is None:
            return loaded
        wanted = found.weights_in(ready.file, ready.weights)
        weights = _load(ready, wanted, found.file, progress)
        built = build_drafter(
            found.spec, found.source, found.plan, weights, self._context(), loaded.model
        )
        drafter = LoadedDrafter(
            found.spec.name,
            found.plan,
            built,
            found.chain,
            found.tree,
            found.file,
            found.confidence,
        )
        return replace(loaded, drafter=drafter)

    def _context(self, scored: ScoredAttention | None = None) -> BuildContext:
        ready, context = self.ready, self.ready.memory.limits.context
        return BuildContext(
            *(ready.ops, ready.device, ready.dtype, ready.plan, context),
            reading=self.reading,
            scored=scored,
        )


def _load(
    ready: Prepared,
    plan: WeightPlan,
    file: GGUFFile,
    progress: Progress | None,
    placement: Placement | None = None,
    landing: int = 0,
) -> Weights:
    return load_weights(
        plan,
        file.inventory,
        ready.formats,
        dtype=ready.dtype,
        device=ready.device,
        keep_quantised=ready.form == "blocks",
        activations=ready.activations if ready.form == "packed" else None,
        progress=progress,
        placement=placement,
        landing=landing,
    )


def _query_kind(family: Family, scored: ScoredAttention) -> QueryKind:
    """The queries of all scored layers of a built model. Raises :class:`UnsupportedModelError` if
    some layer keeps none, or they differ."""
    kinds = {scored.kinds.get(layer) for layer in scored.layers}
    kind = kinds.pop()
    if kind is None or kinds:
        raise UnsupportedModelError(
            f"--kvflash-policy qk: layers {', '.join(map(str, scored.layers))} of family "
            f"{family.name!r} do not all keep queries of one kind, as layers of "
            "kinfolk.nn.attention.Attention with as many heads do: use --kvflash-policy lru"
        )
    return kind


def _example_scorer(ready: Prepared, queries: QueryKind | None) -> QkScorer | None:
    """A small scorer like that of the model, to show policies what they will get."""
    scored = ready.memory.limits.scored
    if scored is None or queries is None:
        return None
    sizes: dict[str, Any] = {"places": PROBE_CHUNKS, "slots": 1, "device": ready.device}
    return QkScorer(ready.ops, ready.plan, scored.layers, queries, **sizes)


def _ask_for_features(ready: Prepared, model: Model) -> None:
    """Let the model return the features that its drafter reads."""
    found = ready.drafters.with_weights
    if found is None or not (found.plan.features or found.plan.final):
        return
    features = getattr(model, "features", None)
    if features is None:
        raise UnsupportedModelError(
            f"{found.file.path}: drafter {found.spec.name!r} reads features of the model, and "
            f"family {ready.family.name!r} has none (Model.features)"
        )
    features(found.plan.features, final=found.plan.final)


def _wants_graphs(settings: Settings, device: torch.device) -> bool:
    if settings.graphs == "auto":
        return device.type == "cuda" or settings.batch_invariant
    if settings.graphs == "off" and settings.batch_invariant:
        raise SettingsError("--batch-invariant needs the steps of --graphs on")
    return settings.graphs == "on"
