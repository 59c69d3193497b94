"""The model: windowed and full attention in sandwich-norm layers."""

from __future__ import annotations

import math

import torch

from kinfolk.experts.store import ExpertStore, halves
from kinfolk.nn.attention import Attention
from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import Decoder
from kinfolk.nn.layer_inputs import LayerInputBranch, LayerInputs
from kinfolk.nn.mlp import GatedMLP
from kinfolk.nn.moe import MoE, Router
from kinfolk.nn.norm import NormGroup, RMSNorm
from kinfolk.nn.residual import Normed, Residual
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.nn.sandwich import ResidualBranch, Sandwich, SandwichLayer
from kinfolk.nn.step import Step
from kinfolk.weights.loader import Weights
from kinfolk_gemma4.config import Gemma4Config


def build(config: Gemma4Config, weights: Weights, context: BuildContext) -> Decoder:
    return _ModelBuilder(config, weights, context).decoder()


class DenseAndExperts:
    """x + after(dense(x) + after_experts(experts(before_experts(x)))); the router reads
    ``before_router(x)``."""

    def __init__(
        self,
        dense: Sandwich,
        before_experts: RMSNorm,
        before_router: RMSNorm,
        experts: MoE,
        after_experts: RMSNorm,
        after: RMSNorm,
    ) -> None:
        self.dense, self.after = dense, after
        self.before = NormGroup(dense.before, before_experts, before_router)
        self.experts, self.after_experts = experts, after_experts

    def __call__(self, stream: Residual, step: Step) -> Residual:
        x, normed, for_experts, for_router = stream.normed(self.before)
        dense = Normed(self.dense.function(normed), self.dense.after)
        routed = Normed(self.experts(for_experts, router_input=for_router), self.after_experts)
        return Residual(x, (dense, routed), self.after)


class LayerBuilder:
    """Builds layers; names of weights are those of the file.

    The state of layer i is entry ``first + i`` of the context's plan.
    """

    def __init__(
        self, config: Gemma4Config, weights: Weights, context: BuildContext, first: int = 0
    ) -> None:
        self.config, self.weights, self.context = config, weights, context
        self.first = first
        self.window_rope = RotaryEmbedding(context, config.window_rope)
        # The factors turn off the rotation of most pairs.
        self.rope = (
            RotaryEmbedding(context, config.rope, weights.tensor("rope_freqs.weight"))
            if config.has_full_layers
            else self.window_rope
        )

    def layer(self, layer: int) -> SandwichLayer:
        block = f"blk.{layer}."
        branches: list[ResidualBranch] = [self.feed_forward(layer, block)]
        if self.config.input_width:
            branches.append(
                LayerInputBranch(
                    self.context,
                    layer,
                    gate=self.weights[f"{block}inp_gate.weight"],
                    output=self.weights[f"{block}proj.weight"],
                    norm=self.after(f"{block}post_norm"),
                )
            )
        return SandwichLayer(
            self.norm(f"{block}attn_norm"),
            self.attention(layer, block),
            self.after(f"{block}post_attention_norm"),
            branches,
            self.weights.optional(f"{block}layer_output_scale.weight"),
        )

    def attention(self, layer: int, block: str) -> Attention:
        config, weights = self.config, self.weights
        owns = config.owns_keys(layer)
        return Attention(
            self.context,
            self.first + layer,
            heads=config.heads[layer],
            kv_heads=config.kv_heads[layer],
            dim=config.head_dim[layer],
            q=weights[f"{block}attn_q.weight"],
            k=weights.get(f"{block}attn_k.weight"),
            v=weights.get(f"{block}attn_v.weight"),
            output=weights[f"{block}attn_output.weight"],
            rope=self.window_rope if config.windowed[layer] else self.rope,
            q_norm=self.norm(f"{block}attn_q_norm"),
            k_norm=self.norm(f"{block}attn_k_norm") if owns else None,
            v_norm=RMSNorm(self.context, None, config.norm_eps) if owns else None,
            scale=1.0,
        )

    def feed_forward(self, layer: int, block: str) -> ResidualBranch:
        weights = self.weights
        dense = GatedMLP(
            self.context,
            gate=weights[f"{block}ffn_gate.weight"],
            up=weights[f"{block}ffn_up.weight"],
            down=weights[f"{block}ffn_down.weight"],
            activation="gelu_tanh",
        )
        before, after = self.norm(f"{block}ffn_norm"), self.after(f"{block}post_ffw_norm")
        if not self.config.experts:
            return Sandwich(before, dense, after)
        router_scale = weights.tensor(f"{block}ffn_gate_inp.scale") / math.sqrt(self.config.width)
        return DenseAndExperts(
            Sandwich(before, dense, self.after(f"{block}post_ffw_norm_1")),
            before_experts=self.norm(f"{block}pre_ffw_norm_2"),
            before_router=RMSNorm(self.context, router_scale, self.config.norm_eps, torch.float32),
            experts=self.experts(layer, block),
            after_experts=self.after(f"{block}post_ffw_norm_2"),
            after=after,
        )

    def experts(self, layer: int, block: str) -> MoE:
        weights = self.weights
        router = Router(
            weights.tensor(f"{block}ffn_gate_inp.weight"),
            score="softmax",
            top_k=self.config.top_k,
            expert_scale=weights.optional(f"{block}ffn_down_exps.scale"),
        )
        fused = f"{block}ffn_gate_up_exps.weight"
        gate, up = (
            halves(weights[fused])
            if fused in weights
            else (weights[f"{block}ffn_gate_exps.weight"], weights[f"{block}ffn_up_exps.weight"])
        )
        down = weights[f"{block}ffn_down_exps.weight"]
        bays = self.context.bays(layer, self.config.experts[layer])
        store = ExpertStore.place(layer, gate, up, down, bays)
        return MoE(self.context, router, store, activation="gelu_tanh")

    def norm(self, name: str, dtype: torch.dtype | None = None) -> RMSNorm:
        weight = self.weights.tensor(f"{name}.weight")
        return RMSNorm(self.context, weight, self.config.norm_eps, dtype)

    def after(self, name: str) -> RMSNorm:
        """The norm of a branch of the residual stream, with results in the stream's dtype."""
        return self.norm(name, torch.float32)


class _ModelBuilder(LayerBuilder):
    """Builds what is around the layers, too."""

    def decoder(self) -> Decoder:
        config, weights = self.config, self.weights
        return Decoder(
            self.context,
            embedding=weights["token_embd.weight"],
            embedding_scale=math.sqrt(config.width),
            layers=[self.layer(index) for index in range(config.layers)],
            norm=self.norm("output_norm"),
            head=weights["output.weight"],
            softcap=config.softcap or None,
            layer_inputs=self.layer_inputs() if config.input_width else None,
        )

    def layer_inputs(self) -> LayerInputs:
        return LayerInputs(
            self.context,
            layers=self.config.layers,
            table=self.weights["per_layer_token_embd.weight"],
            projection=self.weights["per_layer_model_proj.weight"],
            norm=self.norm("per_layer_proj_norm", torch.float32),
        )
