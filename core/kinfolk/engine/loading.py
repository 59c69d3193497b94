"""From a file to a model that can run: family, configuration, weights, hooks, state plan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kinfolk.descriptors import Family
from kinfolk.engine.sizing import free_memory, size_state
from kinfolk.errors import SettingsError
from kinfolk.experts.placement import DefaultPlacement
from kinfolk.gguf.file import GGUFFile
from kinfolk.hooks import CoreHooks, ModelHookCaller, family_party, policy_parties
from kinfolk.model_api import Model, ModelInfo
from kinfolk.nn.context import BuildContext
from kinfolk.ops.table import Ops
from kinfolk.plans import (
    Codec,
    ExpertStats,
    SlotMapping,
    StateLimits,
    StatePlan,
    StorageFormat,
    WeightPlan,
)
from kinfolk.quant.formats import QuantFormats
from kinfolk.registry import Registry
from kinfolk.settings import Settings
from kinfolk.spec.verify import DefaultVerify
from kinfolk.state.layout import pool_layouts
from kinfolk.state.ledger import Ledger
from kinfolk.state.mapping import DefaultMapping
from kinfolk.state.state import State
from kinfolk.weights.loader import load_weights

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]

SLICE_ROWS = {"cpu": 512, "cuda": 2048}
"""Rows of a prompt in one step; one constant a process, so that results do not depend on load."""

WEIGHT_SHARE = 0.6
"""Part of the free memory that dequantised weights may take before they stay quantised."""

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, ready to be given state."""

    file: GGUFFile
    family: Family
    config: Any
    info: ModelInfo
    model: Model
    hooks: ModelHookCaller
    ops: Ops
    plan: StatePlan
    limits: StateLimits
    mapping: SlotMapping
    device: torch.device
    dtype: torch.dtype
    slice_rows: int
    packed: Mapping[str, int] = field(default_factory=dict)
    """Tensors in planes by format."""
    refused: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Tensors that could not be repacked, by format and reason: they are kept as numbers."""

    def new_state(self) -> tuple[Ledger, State]:
        """Empty state and its books."""
        ledger = Ledger(
            self.plan.windows,
            self.limits,
            recurrent=self.plan.has_recurrent,
            rules=self.mapping.rules,
        )
        return ledger, State(self.plan, self.limits, self.device)


def choose_device(name: str) -> torch.device:
    """``auto`` prefers CUDA. Raises :class:`SettingsError` for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise SettingsError(f"--device {name}: this machine has {count} CUDA devices")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[name]


def load_model(
    path: Path, settings: Settings, registry: Registry, progress: Progress | None = None
) -> LoadedModel:
    """Open ``path`` with the family that claims it; everything is checked before weights load."""
    formats = QuantFormats([provided.value for provided in registry.quant_formats])
    file = GGUFFile.open(path, formats.tensor_types())
    family = registry.family_for(file.metadata.architecture, settings.model_family)
    config = family.read_config(file.metadata)
    weight_plan = family.weight_plan(config, file.inventory)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    hooks = ModelHookCaller(
        family_party(family, config),
        (CoreHooks(), DefaultMapping(), DefaultPlacement(), DefaultVerify()),
        trace=settings.trace_plugins,
    )
    slice_rows = SLICE_ROWS[device.type]
    _check_context(settings.context, config.context)
    wanted = _wanted(settings, dtype, slice_rows, config.context)
    info = ModelInfo(
        config.name,
        family.name,
        config.architecture,
        hooks.allocate_cache(config, wanted),
        config.vocabulary,
        wanted.context,
    )
    hooks = hooks.with_policies(policy_parties(registry, settings.policy, info))
    plan = hooks.allocate_cache(config, wanted)
    pool_layouts(plan)  # refuses what cannot be stored
    ops = Ops([provided.value for provided in registry.op_backends], settings.op, device.type)
    form = choose_form(settings.weights, weight_plan, dtype, device)
    weights = load_weights(
        weight_plan,
        file.inventory,
        formats,
        dtype=dtype,
        device=device,
        keep_quantised=form == "blocks",
        activations=settings.activations if form == "planes" else None,
        progress=progress,
    )
    limits = size_state(plan, wanted, config.context, free_memory(device), settings.context)
    info = replace(info, state=plan, context=limits.context)
    placement = None
    if any(config.experts):
        # All of them: experts that stay on the host come later.
        placement = hooks.place_experts(ExpertStats(config.experts), sum(config.experts))
    context = BuildContext(ops, device, dtype, plan, limits.context, placement)
    model = family.build(config, weights, context)
    return LoadedModel(
        file=file,
        family=family,
        config=config,
        info=info,
        model=model,
        hooks=hooks,
        ops=ops,
        plan=plan,
        limits=limits,
        mapping=hooks.map_slots(plan, limits),
        device=device,
        dtype=dtype,
        slice_rows=slice_rows,
        packed=weights.packed,
        refused=weights.refused,
    )


def choose_form(name: str, plan: WeightPlan, dtype: torch.dtype, device: torch.device) -> str:
    """How quantised matrices are kept: ``planes``, ``blocks`` or ``numbers``."""
    if name != "auto":
        return name
    if device.type == "cuda" and find_spec("triton") is not None:
        return "planes"
    return "numbers" if _fits(plan, dtype, device) else "blocks"


def _check_context(asked: int | None, stated: int) -> None:
    if asked is not None and asked > stated:
        log.warning(
            "--context %d: the model was made for %d positions, which it gets", asked, stated
        )


def _wanted(settings: Settings, dtype: torch.dtype, slice_rows: int, context: int) -> StateLimits:
    # Without a wish, keys and values are stored in the type they are computed in.
    names: dict[torch.dtype, StorageFormat] = {
        torch.float32: "f32",
        torch.float16: "f16",
        torch.bfloat16: "bf16",
    }
    return StateLimits(
        slots=settings.slots,
        checkpoints=settings.checkpoints,
        blocks=(),
        context=min(settings.context or context, context),
        step_rows=max(slice_rows, settings.draft_tokens + 1),
        codec=Codec(settings.kv_codec or names[dtype]),
    )


def _fits(plan: WeightPlan, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether all weights fit as numbers of ``dtype``; tensors with several names count once."""
    numbers = 0
    for _, shape in {(spec.tensor, spec.rows): spec.shape for spec in plan}.items():
        size = 1
        for extent in shape:
            size *= extent
        numbers += size
    return numbers * dtype.itemsize <= WEIGHT_SHARE * free_memory(device)
