"""Prepares a model without reading weights: family, configuration, plans of state and memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from kinfolk.descriptors import Family
from kinfolk.draft_api import TargetFacts
from kinfolk.engine.buckets import draft_rows, largest_step, wanted_captures
from kinfolk.engine.core_scorer import ChooseScorer, choose_scorer
from kinfolk.engine.devices import missing_device
from kinfolk.engine.expert_plan import (
    ExpertPlan,
    ExpertRecords,
    asks,
    place,
    plan_experts,
    with_landing,
)
from kinfolk.engine.kvflash import Divide, plan_residency
from kinfolk.engine.memory import (
    BAYS,
    MemoryPlan,
    cache_bytes,
    draft_bytes,
    graph_bytes,
    most_captures,
    plan_memory,
    work_bytes,
)
from kinfolk.engine.preparing_drafters import PreparedDrafters, prepare_drafters
from kinfolk.engine.sizing import GIB, free_memory, host_memory
from kinfolk.engine.step_rows import longest_slice, longest_step
from kinfolk.errors import SettingsError
from kinfolk.experts.placement import DefaultPlacement
from kinfolk.experts.profile import ExpertProfile
from kinfolk.gguf.file import GGUFFile
from kinfolk.guarded import GuardedFamily
from kinfolk.hooks import CoreHooks, ModelHookCaller, family_provider, policy_providers
from kinfolk.model_api import ModelInfo
from kinfolk.ops.binding import Ops
from kinfolk.plans import Codec, StateLimits, StatePlan, WeightPlan
from kinfolk.quant.formats import QuantFormats
from kinfolk.registry import Registry
from kinfolk.residency.rules import ResidencyRules
from kinfolk.settings import Settings
from kinfolk.spec.verify import DefaultVerify
from kinfolk.state.cache_salt import model_hash
from kinfolk.state.layout import pool_layouts
from kinfolk.state.mapping import DefaultMapping
from kinfolk.torch_dtypes import DTYPE_NAMES, TORCH_DTYPES
from kinfolk.weights.size import Form, record_bytes, weight_bytes, without_experts

if TYPE_CHECKING:
    from kinfolk_kernels.planes import Activations

log = logging.getLogger(__name__)

WEIGHT_SHARE = 0.6
"""Part of the free memory that dense weights may use; larger weights stay quantised."""

CHECKPOINTS_BEFORE_HOST = 2
"""Default of checkpoints on a device with its own memory, if the host keeps more of them."""

NO_HOST_MEMORY: Final = (
    "--cache-disk needs host memory for bytes on their way to the disk and from it: set "
    "--cache-memory to more than 0"
)

LOGIT_ROWS = 16
"""Rows of logits for which an eager step has work space."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that is checked and planned; its weights are not read yet."""

    file: GGUFFile
    family: Family
    config: Any
    info: ModelInfo
    hooks: ModelHookCaller
    ops: Ops
    formats: QuantFormats
    weights: WeightPlan
    form: Form
    activations: Activations
    plan: StatePlan
    memory: MemoryPlan
    device: torch.device
    dtype: torch.dtype
    slice_rows: int
    captures: int
    """Captured steps that are kept; the memory plan has room for them."""
    drafters: PreparedDrafters
    residency: ResidencyRules | None
    """The budget of sequences that are longer."""
    experts: ExpertPlan


def prepare_model(
    path: Path, settings: Settings, registry: Registry, *, there: int = 0
) -> Prepared:
    """Open ``path`` with the family that claims it, and plan the memory of the device. ``there``:
    bytes of its weights that the device has already, for another model.

    Raises :class:`ModelFormatError`, :class:`UnsupportedModelError`, :class:`SettingsError` or
    :class:`CapacityError`.
    """
    formats = registry.formats()
    file = GGUFFile.open(path, formats.tensor_types())
    family = registry.family_for(file.metadata.architecture, settings.model_family)
    config = family.read_config(file.metadata)
    weight_plan = family.weight_plan(config, file.inventory)
    device, dtype, usable = _place(settings, there)
    slice_rows = longest_slice(device.type, weight_plan, usable)
    _check_context(settings, config.context)
    cache, host_free = _asked_cache(settings), host_memory()
    cached, is_host = cache_bytes(cache, host_free) > 0, device.type == "cpu"
    checkpoints = default_checkpoints(settings, is_host=is_host, cached=cached)
    wanted = _wanted(settings, dtype, slice_rows, config.context, checkpoints)
    hooks, info = _hooks(family, config, wanted, settings, registry)
    plan = _state_plan(hooks, config, wanted, settings)
    pool_layouts(plan)  # raises if a section cannot be stored
    facts = _target_facts(file, family, config, plan, wanted, settings)
    drafters = prepare_drafters(settings, registry, formats, file, facts)
    trunk, drafter, plan = plan, drafters.with_weights, drafters.behind(plan)
    wanted = replace(wanted, tree_rows=max(wanted.tree_rows, wanted.slots * drafters.arena_rows))
    ops = _ops(registry, settings, device)
    both = drafters.beside(weight_plan)
    form = choose_form(settings.weights, both, dtype, device, usable)
    nbytes = partial(
        weight_bytes, formats=formats, dtype=dtype, activations=settings.activations, form=form
    )
    if form == "blocks" and is_host:
        _warn_of_blocks(settings.weights, partial(nbytes, weight_plan, file.inventory), usable)
    step_tokens, layers = longest_step(settings.step_tokens, slice_rows), len(plan.layers)
    captures, largest = _captures(settings, usable, layers, step_tokens, slice_rows, drafters)
    features, drafts = _draft_sizes(drafters, config, wanted.slots)
    parted = partial(
        plan_memory,
        usable=usable,
        drafter=0 if drafter is None else nbytes(drafter.plan.weights, drafter.file.inventory),
        work=work_bytes(both, step_tokens, LOGIT_ROWS, features, drafts),
        graphs=graph_bytes(both, layers, captures, *largest, features, drafts),
        is_host=is_host,
        plan=plan,
        model_context=config.context,
        asked=settings.context,
        flexible=frozenset({"slots", "checkpoints"} - settings.model_fields_set),
        cache=cache,
    )
    choose = _core_scorer(settings, registry, trunk, file, device, dtype, drafters)
    plan_state = partial(plan_residency, settings, plan, wanted, hooks, choose=choose)
    memory, residency, experts = _with_experts(
        *(settings, file, config, weight_plan, nbytes, hooks, parted, plan_state),
        host_free=host_free,
    )
    log.info("%s", memory)
    return Prepared(
        file=file,
        family=family,
        config=config,
        info=replace(info, state=plan, context=memory.limits.context),
        hooks=hooks,
        ops=ops,
        formats=formats,
        weights=weight_plan,
        form=form,
        activations=settings.activations,
        plan=plan,
        memory=memory,
        device=device,
        dtype=dtype,
        slice_rows=slice_rows,
        captures=captures,
        drafters=drafters,
        residency=residency,
        experts=experts,
    )


def _with_experts(
    settings: Settings,
    file: GGUFFile,
    config: Any,
    weights: WeightPlan,
    nbytes: partial[int],
    hooks: ModelHookCaller,
    parted: partial[MemoryPlan],
    plan_state: Callable[[Divide, int], tuple[MemoryPlan, ResidencyRules | None]],
    *,
    host_free: int,
) -> tuple[MemoryPlan, ResidencyRules | None, ExpertPlan]:
    """Divide memory between state and bays of experts, and ask which experts are in them."""
    is_host, layers = parted.keywords["is_host"], tuple(config.experts)
    indices, keywords = range(len(layers)), nbytes.keywords
    found = record_bytes(weights, file.inventory, layers=indices, **keywords)
    core = without_experts(weights, found)

    def divide(bays: int | None, homes: int) -> tuple[MemoryPlan, ResidencyRules | None]:
        free = host_free if is_host else max(0, host_free - homes)
        taken = nbytes(weights if bays is None else core, file.inventory)
        # Of what is free, the plan itself subtracts the homes.
        part = partial(parted, weights=taken, experts=bays, homes=homes, host_free=host_free)
        return plan_state(part, free)

    records = ExpertRecords(layers, tuple(found.get(layer, 0) for layer in indices))
    path = settings.expert_profile
    profile = None
    if path is not None and records.total:
        profile = ExpertProfile.load(path, model_hash(file), layers)
    elif path is not None:
        log.warning("--expert-profile: the model has no experts that could be counted")
    ask = asks(hooks, records, profile)
    memory, residency, budget = plan_experts(
        *(settings, records, divide),
        is_host=is_host,
        host_free=host_free,
        form=keywords["form"],
        counted=profile is not None,
        landing=lambda bays: with_landing(records, bays, ask, records.total)[1],
    )
    top_k = file.metadata.integer(f"{config.architecture}.expert_used_count", default=0)
    beside = memory.parts.get(BAYS, 0) - (budget or 0)
    fixed: dict[str, Any] = {"settings": settings, "top_k": top_k, "profile": profile}
    experts = place(ask, records, budget, **fixed, beside=beside)
    return memory, residency, experts


def _ops(registry: Registry, settings: Settings, device: torch.device) -> Ops:
    return Ops([provided.value for provided in registry.op_backends], settings.op, device.type)


def _core_scorer(
    settings: Settings,
    registry: Registry,
    trunk: StatePlan,
    file: GGUFFile,
    device: torch.device,
    dtype: torch.dtype,
    drafters: PreparedDrafters,
) -> ChooseScorer:
    ops = _ops(registry, settings, device)  # which binds what it tries
    formats = registry.formats()
    asked = (settings, trunk, file.metadata, ops, device, dtype, drafters.drafts, formats)
    return partial(choose_scorer, *asked)


def _hooks(
    family: GuardedFamily,
    config: Any,
    wanted: StateLimits,
    settings: Settings,
    registry: Registry,
) -> tuple[ModelHookCaller, ModelInfo]:
    """The hooks of the model, with the policies switched on, and what these were told."""
    hooks = ModelHookCaller(
        family_provider(family, config),
        (CoreHooks(), DefaultMapping(), DefaultPlacement(), DefaultVerify()),
        trace=settings.trace_plugins,
    )
    info = ModelInfo(
        config.name,
        family.name,
        config.architecture,
        _state_plan(hooks, config, wanted, settings),
        config.vocabulary,
        wanted.context,
    )
    return hooks.with_policies(policy_providers(registry, settings.policy, info)), info


def _target_facts(
    file: GGUFFile,
    family: Family,
    config: Any,
    plan: StatePlan,
    wanted: StateLimits,
    settings: Settings,
) -> TargetFacts:
    return TargetFacts(
        path=file.path,
        family=family.name,
        metadata=file.metadata,
        config=config,
        state=plan,
        context=wanted.context,
        codec=wanted.codec or Codec(),
        draft_tokens=settings.draft_tokens,
        options=settings.draft_option,
    )


def _draft_sizes(drafters: PreparedDrafters, config: Any, slots: int) -> tuple[int, int]:
    """Numbers of a row of features, and bytes of a draft of all slots."""
    drafter = drafters.with_weights
    if drafter is None:
        return 0, draft_bytes(config.vocabulary, 0)
    rows = draft_rows(slots, drafter.plan.depth)
    return drafter.plan.feature_width(config.width), draft_bytes(config.vocabulary, rows)


def _captures(
    settings: Settings,
    usable: int,
    layers: int,
    step_tokens: int,
    slice_rows: int,
    drafters: PreparedDrafters,
) -> tuple[int, tuple[int, int]]:
    """How many captured steps are kept, and the rows and rows of logits of the largest."""
    drafter = drafters.with_weights
    wanted = wanted_captures(
        settings.slots,
        step_tokens,
        slice_rows,
        host=drafters.host_rows,
        chain=0 if drafter is None else drafter.chain,
        tree=0 if drafter is None else drafter.tree,
        previews=settings.kvflash != "off" and settings.kvflash_policy in ("qk", "oracle"),
    )
    return most_captures(usable, layers, wanted), largest_step(settings.slots, slice_rows)


def _place(settings: Settings, there: int) -> tuple[torch.device, torch.dtype, int]:
    """Device, type of numbers, and bytes that can be used, with those that are ``there``."""
    device = choose_device(settings.device)
    usable = usable_memory(device, settings.memory) + there
    return device, choose_dtype(settings.dtype, device), usable


def choose_device(name: str) -> torch.device:
    """The torch device of a setting: ``auto`` prefers CUDA, ``cuda`` is the first CUDA device. A
    CUDA device always has an index, as parts of torch require it. Raises :class:`SettingsError` for
    a device that does not exist."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return torch.device(kind)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise missing_device(name, count)
    return torch.device(kind, int(index or 0))


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return TORCH_DTYPES[name]


def usable_memory(device: torch.device, limit: float | None) -> int:
    """Free bytes of a device, or the ``limit`` in GiB if that is less."""
    free = free_memory(device)
    return free if limit is None else min(free, int(limit * GIB))


def choose_form(
    name: Form | Literal["auto"],
    plan: WeightPlan,
    dtype: torch.dtype,
    device: torch.device,
    usable: int,
) -> Form:
    """How quantised matrices are stored: packed, blocks or dense."""
    if name != "auto":
        return name
    if device.type == "cuda" and find_spec("triton") is not None:
        return "packed"
    return "dense" if _fits(plan, dtype, usable) else "blocks"


def _warn_of_blocks(asked: str, nbytes: partial[int], usable: int) -> None:
    """Log that a CPU dequantises blocks in every step, measured as up to nine times the time of a
    step with dense weights."""
    blocks, numbers = nbytes(), nbytes(form="dense")
    if blocks == numbers:
        return  # nothing is quantised
    slow = (
        "the CPU dequantises the weights again in every step, which makes it up to ten times slower"
    )
    if asked == "auto":
        log.warning(
            "%s: dense weights do not fit, %.2f GiB of %.2f GiB that can be used",
            *(slow, numbers / GIB, usable / GIB),
        )
    else:
        log.warning(
            "--weights blocks: %s; --weights dense would take %.2f GiB", slow, numbers / GIB
        )


def _check_context(settings: Settings, stated: int) -> None:
    asked = settings.context
    if asked is not None and settings.asked("context") and asked > stated:
        log.warning(
            "--context %d: the model supports %d positions, so the context is %d",
            asked,
            stated,
            stated,
        )


def _asked_cache(settings: Settings) -> int | None:
    """Bytes of host memory for demoted checkpoints that the user asked for."""
    if settings.cache_disk and settings.cache_memory == 0:
        raise SettingsError(NO_HOST_MEMORY, field="cache_disk")
    return None if settings.cache_memory is None else int(settings.cache_memory * GIB)


def default_checkpoints(settings: Settings, *, is_host: bool, cached: bool) -> int:
    """Checkpoints on the device: those that were asked for, or fewer than usual if the host has
    memory of its own for others (``cached``)."""
    if settings.batch_invariant:
        # A prompt that continues from a checkpoint has other slices than one from the start.
        return 0
    if cached and not is_host and "checkpoints" not in settings.model_fields_set:
        return CHECKPOINTS_BEFORE_HOST
    return settings.checkpoints


def _wanted(
    settings: Settings, dtype: torch.dtype, slice_rows: int, context: int, checkpoints: int
) -> StateLimits:
    # By default, keys and values are stored in the dtype of the computation.
    return StateLimits(
        slots=settings.slots,
        checkpoints=checkpoints,
        blocks=(),
        context=min(settings.context or context, context),
        step_rows=slice_rows,
        codec=Codec(settings.kv_codec or DTYPE_NAMES[dtype]),
    )


def _state_plan(
    hooks: ModelHookCaller, config: Any, wanted: StateLimits, settings: Settings
) -> StatePlan:
    """The family's plan of state, with the storage of values replaced if it was set apart."""
    plan = hooks.allocate_cache(config, wanted)
    return plan.storing("v", Codec(settings.v_codec)) if settings.v_codec else plan


def _fits(plan: WeightPlan, dtype: torch.dtype, usable: int) -> bool:
    """Whether all weights fit as dense ``dtype`` tensors; tied tensors count once."""
    numbers = 0
    for _, shape in {(spec.tensor, spec.rows): spec.shape for spec in plan}.items():
        size = 1
        for extent in shape:
            size *= extent
        numbers += size
    return numbers * dtype.itemsize <= WEIGHT_SHARE * usable
