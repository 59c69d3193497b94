"""Which released shape fits which card: the largest context of one sequence, from the planner.

    python benchmarks/cards.py [--shape NAME]…

Prints the table of the README. Nothing is loaded and no file is written: names, shapes and types of
tensors are those of a synthetic file, and the memory is divided by the functions that ``kinfolk
plan`` calls. Settings are the defaults of a GPU (packed weights, bfloat16 keys and values); slots
and checkpoints are lowered where they are in the way, as ``kinfolk serve --context N`` does. The
host keeps further checkpoints.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from kinfolk.engine.buckets import largest_step, wanted_captures
from kinfolk.engine.memory import (
    MOST_CACHE_BYTES,
    MemoryPlan,
    graph_bytes,
    most_captures,
    plan_memory,
    work_bytes,
)
from kinfolk.engine.preparing import LOGIT_ROWS, default_checkpoints
from kinfolk.engine.preparing_drafters import HOST_DRAFT
from kinfolk.engine.sizing import GIB, LEAST_COUNTS
from kinfolk.engine.step_rows import ON_GPU, longest_slice, longest_step
from kinfolk.errors import CapacityError
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.gguf.metadata import Metadata
from kinfolk.hooks import ModelHookCaller, family_provider
from kinfolk.plans import Codec, StateLimits
from kinfolk.quant.formats import QuantFormats
from kinfolk.registry import Registry
from kinfolk.settings import Settings, load_settings
from kinfolk.synth.plan import SynthPlan, find_shape, plan_synthetic
from kinfolk.weights.size import weight_bytes

SHAPES = (
    "qwen3.5-4b",
    "qwen3.5-9b",
    "gemma-4-12b",
    "qwen3.5-27b",
    "gemma-4-26b-a4b",
    "gemma-4-31b",
    "laguna-xs.2",
    "qwen3.5-35b-a3b",
)
CARDS = (8, 12, 16, 24, 32, 48, 80)
"""GiB of memory."""

TAKEN = 0.5
"""GiB of a card that the driver and the CUDA context are assumed to take."""

STEP = 1024
"""Contexts are tried in multiples of so many positions."""


class Model:
    """A model file as the planner sees it: bytes of weights, state of a sequence, context."""

    def __init__(self, metadata: Metadata, inventory: Inventory, registry: Registry) -> None:
        settings = load_settings()
        family = registry.family_for(metadata.architecture, settings.model_family)
        config = family.read_config(metadata)
        self.context: int = config.context
        self.weights = family.weight_plan(config, inventory)
        formats = QuantFormats([provided.value for provided in registry.quant_formats])
        self.weight_bytes = weight_bytes(
            self.weights,
            inventory,
            formats,
            dtype=torch.bfloat16,
            form="packed",
            activations=settings.activations,
        )
        self.wanted = _wanted(settings, self.context)
        self.hooks = ModelHookCaller(family_provider(family, config))
        self.config = config

    def memory(self, usable: int, context: int | None = None) -> MemoryPlan:
        """How ``usable`` bytes of a GPU are divided. Raises :class:`CapacityError`."""
        longest = longest_slice("cuda", self.weights, usable)
        wanted = replace(self.wanted, step_rows=longest)
        plan = self.hooks.allocate_cache(self.config, wanted)
        rows, slots, layers = longest_step(None, longest), wanted.slots, len(plan.layers)
        likely = wanted_captures(slots, rows, longest, host=HOST_DRAFT)
        captures, largest = most_captures(usable, layers, likely), largest_step(slots, longest)
        return plan_memory(
            usable=usable,
            weights=self.weight_bytes,
            work=work_bytes(self.weights, rows, LOGIT_ROWS),
            graphs=graph_bytes(self.weights, layers, captures, *largest),
            is_host=False,
            plan=plan,
            wanted=wanted,
            model_context=self.context,
            asked=context,
            flexible=frozenset(LEAST_COUNTS),
            cache=MOST_CACHE_BYTES,
            host_free=MOST_CACHE_BYTES,
        )

    def largest_context(self, usable: int) -> int:
        """The largest multiple of ``STEP`` that fits, 0 if none does."""
        fits, too_long = 0, self.context // STEP + 1
        while too_long - fits > 1:
            steps = (fits + too_long) // 2
            try:
                self.memory(usable, steps * STEP)
            except CapacityError:
                too_long = steps
            else:
                fits = steps
        return fits * STEP


def _wanted(settings: Settings, context: int) -> StateLimits:
    return StateLimits(
        slots=settings.slots,
        checkpoints=default_checkpoints(settings, is_host=False, cached=True),
        blocks=(),
        context=context,
        step_rows=ON_GPU.slice,
        codec=Codec("bf16"),
    )


def synthetic(shape: str, registry: Registry) -> Model:
    """A released shape in its usual mix of types."""
    families = [provided.value for provided in registry.families.values()]
    plan = plan_synthetic(find_shape(shape, families))
    return Model(Metadata.from_dict(plan.metadata), inventory_of(plan), registry)


def inventory_of(plan: SynthPlan) -> Inventory:
    """The tensors of a synthetic file that is not written."""
    return Inventory(
        TensorInfo(
            name=tensor.layout.name,
            shape=tensor.layout.shape,
            ggml_type=tensor.layout.ggml_type,
            type_name=tensor.kind,
            path=Path("synthetic.gguf"),
            part=0,
            offset=0,
            nbytes=tensor.layout.nbytes,
        )
        for tensor in plan.tensors
    )


def usable_bytes(card: int) -> int:
    """Bytes of a card of so many GiB that a model can use."""
    return int((card - TAKEN) * GIB)


def row(shape: str, registry: Registry) -> str:
    """The line of a shape in the table."""
    model = synthetic(shape, registry)
    contexts = [model.largest_context(usable_bytes(card)) for card in CARDS]
    cells = [f"{context // 1024}K" if context else "–" for context in contexts]
    return f"| {shape} | {model.weight_bytes / GIB:.1f} | {' | '.join(cells)} |"


def head() -> str:
    """The first two lines of the table."""
    titles = ["shape", "weights, GiB", *(f"{card} GB" for card in CARDS)]
    return f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", action="append", help="default: all of the README")
    shapes = parser.parse_args().shape or SHAPES
    registry = Registry.discover(load_settings())
    sys.stdout.write(head() + "\n")
    for shape in shapes:
        sys.stdout.write(row(shape, registry) + "\n")


if __name__ == "__main__":
    main()
