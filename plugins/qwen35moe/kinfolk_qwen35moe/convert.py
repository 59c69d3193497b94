"""Converts a Hugging Face checkpoint of a mixture of experts to a GGUF file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kinfolk.convert.checkpoint import Config, HFCheckpoint
from kinfolk.convert.feed_forward import ExpertSizes, gated_mlp, is_fused, routed_experts
from kinfolk.convert.hybrid.conversion import hybrid_conversion
from kinfolk.convert.hybrid.tensors import FeedForward
from kinfolk.convert.plan import Conversion, TensorRecipe, recipe
from kinfolk_qwen35moe.text import PRETOKENIZERS

ARCHITECTURE: Final = "qwen35moe"
MODEL_TYPES: Final = ("qwen3_5_moe", "qwen3_5_moe_text")


@dataclass(frozen=True, slots=True)
class MixtureSizes:
    """The routed experts, the number that a token uses, and the width of the shared expert."""

    routed: ExpertSizes
    top_k: int
    shared: int

    def metadata(self) -> Mapping[str, object]:
        return {
            "expert_count": self.routed.experts,
            "expert_used_count": self.top_k,
            "expert_feed_forward_length": self.routed.width,
            "expert_shared_feed_forward_length": self.shared,
        }

    def recipes(self, file: str, source: str, *, fused: bool) -> Iterator[TensorRecipe]:
        """The feed-forward tensors of a layer; prefixes ``file`` and ``source`` end in a dot."""
        routed, source = self.routed, f"{source}mlp."
        yield from routed_experts(file, f"{source}experts.", routed, fused=fused)
        router = (routed.experts, routed.hidden)
        yield recipe(f"{file}ffn_gate_inp.weight", f"{source}gate.weight", *router)
        shared = f"{source}shared_expert."
        yield from gated_mlp(file, shared, routed.hidden, self.shared, "_shexp")
        gate = f"{source}shared_expert_gate.weight"
        yield recipe(f"{file}ffn_gate_inp_shexp.weight", gate, 1, routed.hidden)


def conversion(checkpoint: HFCheckpoint) -> Conversion | None:
    """The conversion of a checkpoint of this family, ``None`` for any other."""
    return hybrid_conversion(checkpoint, ARCHITECTURE, MODEL_TYPES, PRETOKENIZERS, _feed_forward)


def _feed_forward(
    config: Config, names: Collection[str]
) -> tuple[FeedForward, Mapping[str, object]]:
    routed = ExpertSizes(
        config.integer("num_experts"),
        config.integer("hidden_size"),
        config.integer("moe_intermediate_size"),
    )
    top_k = config.integer("num_experts_per_tok")
    if top_k > routed.experts:
        raise config.fail("num_experts_per_tok", f"is {top_k}, of {routed.experts} experts")
    config.require("norm_topk_prob", True, True)
    config.require("decoder_sparse_step", 1, 1)
    config.ignore({"intermediate_size": "every layer has experts"})
    sizes = MixtureSizes(routed, top_k, config.integer("shared_expert_intermediate_size"))

    def recipes(file: str, source: str) -> Iterator[TensorRecipe]:
        return sizes.recipes(file, source, fused=is_fused(names, f"{source}mlp.experts."))

    return recipes, sizes.metadata()
