"""Feed-forward networks and experts, by the names of their tensors in files."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kinfolk.config import Activation
from kinfolk.experts.store import ExpertStore, halves
from kinfolk.gguf.inventory import Inventory
from kinfolk.nn.context import BuildContext
from kinfolk.nn.mlp import GatedMLP
from kinfolk.plans import WeightSpec
from kinfolk.weights.loader import Weights
from kinfolk_kernels.experts.op import SharedExpert

FUSED = "ffn_gate_up_exps.weight"


def mlp_weights(layer: int, width: int, channels: int, suffix: str = "") -> Iterator[WeightSpec]:
    """``ffn_{gate,up,down}<suffix>`` of a gated network of ``channels`` channels."""
    block = f"blk.{layer}.ffn_"
    yield WeightSpec(f"{block}gate{suffix}.weight", (channels, width))
    yield WeightSpec(f"{block}up{suffix}.weight", (channels, width))
    yield WeightSpec(f"{block}down{suffix}.weight", (width, channels))


def mlp(
    context: BuildContext,
    weights: Weights,
    layer: int,
    suffix: str = "",
    activation: Activation = "silu",
) -> GatedMLP:
    """The network of :func:`mlp_weights`."""
    block = f"blk.{layer}.ffn_"
    return GatedMLP(
        context,
        gate=weights[f"{block}gate{suffix}.weight"],
        up=weights[f"{block}up{suffix}.weight"],
        down=weights[f"{block}down{suffix}.weight"],
        activation=activation,
    )


def shared_expert(
    weights: Weights, layer: int, suffix: str, shared_gate: torch.Tensor | None = None
) -> SharedExpert:
    """The network of :func:`mlp_weights` as the shared expert of a layer."""
    block = f"blk.{layer}.ffn_"
    return SharedExpert(
        weights[f"{block}gate{suffix}.weight"],
        weights[f"{block}up{suffix}.weight"],
        weights[f"{block}down{suffix}.weight"],
        shared_gate,
    )


def expert_weights(
    inventory: Inventory, layer: int, experts: int, width: int, channels: int
) -> Iterator[WeightSpec]:
    """``ffn_{gate,up,down}_exps`` of a layer; gate and up may be one tensor, gate rows first."""
    block = f"blk.{layer}."
    if block + FUSED in inventory:
        yield WeightSpec(block + FUSED, (experts, 2 * channels, width), "experts")
    else:
        yield WeightSpec(f"{block}ffn_gate_exps.weight", (experts, channels, width), "experts")
        yield WeightSpec(f"{block}ffn_up_exps.weight", (experts, channels, width), "experts")
    yield WeightSpec(f"{block}ffn_down_exps.weight", (experts, width, channels), "experts")


def experts(context: BuildContext, weights: Weights, layer: int) -> ExpertStore:
    """The experts of :func:`expert_weights`, in the bays of the context's placement."""
    block = f"blk.{layer}."
    if block + FUSED in weights:
        gate, up = halves(weights[block + FUSED])
    else:
        gate = weights[f"{block}ffn_gate_exps.weight"]
        up = weights[f"{block}ffn_up_exps.weight"]
    down = weights[f"{block}ffn_down_exps.weight"]
    return ExpertStore.place(layer, gate, up, down, context.bays(layer, int(down.shape[0])))
