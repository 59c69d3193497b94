"""The DFlash drafter: keys and values from features of the target, and one forward of a block.

A block is the last chosen token and masks. Its rows attend to each other and, in every layer, to
keys and values that were made from the target's features, not from hidden states of the drafter.
Row k predicts the token at its own position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isclose
from typing import Any, Final

import torch

from kinfolk.config import Rope
from kinfolk.draft_api import DraftBlock, DraftPlan, Proposals
from kinfolk.errors import UnsupportedModelError
from kinfolk.model_api import CommitBatch, Model, StateView, StepBatch
from kinfolk.nn.attention import Attention, SoftplusGate
from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import PreNormLayer
from kinfolk.nn.feed_forward import mlp
from kinfolk.nn.key_values import KeyValueWriter
from kinfolk.nn.linear import Linear, Linears
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.residual import Residual
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.nn.step import Mixer, Step
from kinfolk.spec.dflash.config import DFlashConfig
from kinfolk.spec.dflash.convolution import (
    BlockConvolution,
    ConvolvedFeedForward,
    ConvolvedMixer,
)
from kinfolk.spec.dflash.layouts import (
    CONTEXT_NORM,
    EMBEDDING_TENSOR,
    FC,
    HEAD_TENSOR,
    OUTPUT_NORM,
    ROPE_DIVISORS,
    SELECTOR,
    SELECTOR_HIDDEN,
)
from kinfolk.spec.dflash.ranking import CandidateSelector, Independent, Ranking
from kinfolk.spec.dflash.weights import feature_norm
from kinfolk.weights.loader import Weights
from kinfolk_kernels.embedding.op import EMBEDDING, EmbeddingArguments
from kinfolk_kernels.softcap.op import SOFTCAP, SoftcapArguments

_SAME: Final = 0.01
"""Scales that differ by less are one number, rounded to bfloat16 or not."""

Embed = Callable[[torch.Tensor], torch.Tensor]


def build(plan: DraftPlan, weights: Weights, context: BuildContext, target: Model) -> DFlash:
    """The drafter over loaded weights, for the built target."""
    return _DrafterBuilder(plan, weights, context, target).drafter()


class ContextKeys(KeyValueWriter):
    """The keys and values that one layer makes of fused features, and where they are stored.

    ``norm`` is the layer's first norm, if the layer applies it to features too.
    """

    def __init__(
        self,
        context: BuildContext,
        layer: int,
        *,
        dim: int,
        k_norm: RMSNorm,
        rope: RotaryEmbedding,
        norm: RMSNorm | None,
    ) -> None:
        super().__init__(context, layer, dim=dim, k_norm=k_norm, rope=rope)
        self.norm = norm


class FusedFeatures:
    """norm(W features), one row for all layers; ``norms`` are those of each feature layer."""

    def __init__(
        self, context: BuildContext, fc: Any, norm: RMSNorm, norms: Sequence[RMSNorm]
    ) -> None:
        self.fc, self.norm, self.norms = Linear(context, fc), norm, tuple(norms)
        self.dtype = context.dtype

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """[R, N * width] -> [R, width]."""
        if self.norms:
            parts = features.float().chunk(len(self.norms), 1)
            normed = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
            features = torch.cat(normed, 1)
        return self.norm(self.fc(features.to(self.dtype)))


class ScaledMixer:
    """A mixer whose result is multiplied by ``scale``."""

    def __init__(self, mixer: Mixer, scale: float) -> None:
        self.mixer, self.scale = mixer, scale

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        mixed, trace = self.mixer(x, step)
        return mixed * self.scale, trace

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        self.mixer.commit(trace, kept, view)


class DFlash:
    """A built drafter: see :class:`kinfolk.draft_api.ModelDrafter`.

    ``causal`` says for each layer whether a row of the block sees no later one.
    """

    def __init__(
        self,
        *,
        block: int,
        fused: FusedFeatures,
        context_inputs: Sequence[Linears],
        context_keys: Sequence[ContextKeys],
        embed: Embed,
        layers: Sequence[PreNormLayer],
        causal: Sequence[bool],
        norm: RMSNorm,
        logits: Embed,
        ranking: Ranking,
        device: torch.device,
    ) -> None:
        self.block = block
        self.fused = fused
        self.context_inputs, self.context_keys = tuple(context_inputs), tuple(context_keys)
        self.embed, self.layers, self.causal = embed, tuple(layers), tuple(causal)
        self.norm, self.logits, self.ranking = norm, logits, ranking
        # 64 rows use the sign bit as well.
        seen = [(1 << row + 1) - 1 for row in range(block)]
        signed = [bits - (1 << 64) if bits >> 63 else bits for bits in seen]
        self.causal_rows = torch.tensor(signed, dtype=torch.int64, device=device)

    def extend(
        self, features: torch.Tensor | None, batch: StepBatch, view: StateView
    ) -> Sequence[Any]:
        assert features is not None, "the plan asks for features"
        fused = self.fused(features)
        if len(self.context_inputs) == 1:
            projected = self.context_inputs[0](fused)
        else:
            projected = ()
            for inputs, keys in zip(self.context_inputs, self.context_keys, strict=True):
                projected += inputs(fused if keys.norm is None else keys.norm(fused))
        for index, layer in enumerate(self.context_keys):
            layer.write(projected[2 * index], projected[2 * index + 1], batch, view)
        return ()

    def commit(self, trace: Sequence[Any], kept: CommitBatch, view: StateView) -> None:
        """Nothing to advance: kept rows of trees are copied by the engine."""

    def draft(self, block: DraftBlock, view: StateView) -> Proposals:
        normed = self.hidden(block, view)
        rows = normed.view(block.lanes, self.block, -1)[:, 1 : 1 + block.depth]
        logits = self.logits(rows.flatten(0, 1)).view(*rows.shape[:2], -1)
        return self.ranking(block, logits, rows)

    def hidden(self, block: DraftBlock, view: StateView) -> torch.Tensor:
        """The rows of the block after the last norm [L * block, width]."""
        causal = replace(block.batch, ancestors=self.causal_rows.repeat(block.lanes))
        steps = {False: Step(block.batch, view), True: Step(causal, view)}
        stream = Residual(self.embed(block.batch.tokens))
        for layer, is_causal in zip(self.layers, self.causal, strict=True):
            stream, _ = layer(stream, steps[is_causal])
        return stream.normed(self.norm)[1]


class _DrafterBuilder:
    """Builds the drafter's parts; weights have their names in layout B."""

    def __init__(
        self, plan: DraftPlan, weights: Weights, context: BuildContext, target: Model
    ) -> None:
        assert isinstance(plan.config, DFlashConfig)
        self.plan, self.config, self.weights = plan, plan.config, weights
        self.context, self.target = context, target
        self.first = len(context.state.layers) - len(plan.state)
        divisors = weights.tensor(ROPE_DIVISORS) if self.config.rope_divisors else None
        rope: Rope = self.config.rope
        self.rope = RotaryEmbedding(context, rope, divisors)

    def drafter(self) -> DFlash:
        config = self.config
        logits, dtype = self.head()
        return DFlash(
            block=self.plan.block,
            fused=self.fused(),
            context_inputs=self.context_inputs(),
            context_keys=[self.context_keys(index) for index in range(len(config.layers))],
            embed=self.embedding(),
            layers=[self.layer(index) for index in range(len(config.layers))],
            causal=[layer.causal for layer in config.layers],
            norm=self.norm(OUTPUT_NORM, dtype),
            logits=logits,
            ranking=self.ranking(dtype),
            device=self.context.device,
        )

    def norm(self, name: str, dtype: torch.dtype | None = None) -> RMSNorm:
        weight = self.weights.tensor(name).view(-1)
        return RMSNorm(self.context, weight, self.config.norm_eps, dtype)

    # -- context ------------------------------------------------------------------------------

    def fused(self) -> FusedFeatures:
        norms = range(self.config.feature_count) if self.config.feature_norms else ()
        return FusedFeatures(
            self.context,
            self.weights[FC],
            self.norm(CONTEXT_NORM),
            [self.norm(feature_norm(index)) for index in norms],
        )

    def context_inputs(self) -> list[Linears]:
        """The key and value projections of all layers, side by side if they read the same rows."""
        matrices: list[list[Any]] = [
            [self.weights[f"blk.{layer}.attn_{name}.weight"] for name in ("k", "v")]
            for layer in range(len(self.config.layers))
        ]
        if not self.config.context_norm:
            matrices = [[matrix for pair in matrices for matrix in pair]]
        return [Linears(self.context, pair) for pair in matrices]

    def context_keys(self, index: int) -> ContextKeys:
        block = f"blk.{index}."
        return ContextKeys(
            self.context,
            self.first + index,
            dim=self.config.head_dim,
            k_norm=self.norm(f"{block}attn_k_norm.weight"),
            rope=self.rope,
            norm=self.norm(f"{block}attn_norm.weight") if self.config.context_norm else None,
        )

    # -- block --------------------------------------------------------------------------------

    def layer(self, index: int) -> PreNormLayer:
        block = f"blk.{index}."
        mixer: Mixer = self.attention(index, block)
        feed_forward: Embed = mlp(
            self.context, self.weights, index, activation=self.config.activation
        )
        if self.config.value_scale != 1.0:
            mixer = ScaledMixer(mixer, self.config.value_scale)
        if self.config.convolution is not None:
            mixer = ConvolvedMixer(self.convolution(f"{block}attn"), mixer)
            feed_forward = ConvolvedFeedForward(self.convolution(f"{block}ffn"), feed_forward)
        return PreNormLayer(
            self.norm(f"{block}attn_norm.weight"),
            mixer,
            self.norm(f"{block}ffn_norm.weight"),
            feed_forward,
        )

    def attention(self, index: int, block: str) -> Attention:
        config, weights = self.config, self.weights
        gate = None
        if config.gate != "none":
            gate = SoftplusGate(weights[f"{block}attn_gate.weight"], config.heads)
        return Attention(
            self.context,
            self.first + index,
            heads=config.heads,
            kv_heads=config.kv_heads,
            dim=config.head_dim,
            q=weights[f"{block}attn_q.weight"],
            k=weights[f"{block}attn_k.weight"],
            v=weights[f"{block}attn_v.weight"],
            output=weights[f"{block}attn_output.weight"],
            rope=self.rope,
            q_norm=self.norm(f"{block}attn_q_norm.weight"),
            k_norm=self.norm(f"{block}attn_k_norm.weight"),
            scale=config.attention_scale,
            gate=gate,
        )

    def convolution(self, part: str) -> BlockConvolution:
        return BlockConvolution(
            self.context,
            self.weights.tensor(f"{part}_conv_base"),
            self.weights[f"{part}_conv_proj.weight"],
            self.plan.block,
        )

    # -- embedding and head -------------------------------------------------------------------

    def embedding(self) -> Embed:
        """The drafter's own table, or the target's with the target's scale."""
        scale = self.config.embedding_scale
        applied = getattr(self.target, "embedding_scale", None)
        if self.config.own_embedding:
            scale = applied or 1.0 if scale is None else scale
            table: Any = self.weights[EMBEDDING_TENSOR]
            arguments = EmbeddingArguments(table, scale)
            return self.context.ops.bind(EMBEDDING, arguments)
        if scale is None or applied is None or isclose(scale, applied, rel_tol=_SAME):
            return self.target.embed
        factor = scale / applied
        return lambda tokens: self.target.embed(tokens) * factor

    def head(self) -> tuple[Embed, torch.dtype]:
        """From normed rows to float32 logits, and the dtype of the normed rows."""
        config, context = self.config, self.context
        if not config.own_head:
            self.check_target_head()
            nothing = torch.zeros(1, config.width, device=context.device)
            return self.scaled(self.target.logits, capped=True), self.target.norm(nothing).dtype
        weight: Any = self.weights[HEAD_TENSOR]
        dtype = context.dtype if isinstance(weight, torch.Tensor) else torch.float32
        return self.scaled(Linear(context, weight, dtype), capped=False), dtype

    def scaled(self, head: Embed, *, capped: bool) -> Embed:
        """``head`` with the drafter's scale and softcap; ``capped``: the head applies the target's
        softcap itself, if it has one."""
        scale, limit = self.config.logit_scale, self.config.softcap
        if capped and getattr(self.target, "softcap_limit", None) is not None:
            limit = None
        if limit is None:
            return head if scale == 1.0 and capped else lambda rows: head(rows).float() * scale
        softcap = self.context.ops.bind(SOFTCAP, SoftcapArguments(limit, self.context.device))
        return lambda rows: softcap(head(rows).float() * scale)

    def check_target_head(self) -> None:
        """Refuse scales that cannot be applied before the softcap of the target's head."""
        limit = getattr(self.target, "softcap_limit", None)
        stated, scale = self.config.softcap, self.config.logit_scale
        if limit is None:
            return
        if stated is not None and not isclose(stated, limit, rel_tol=_SAME):
            raise UnsupportedModelError(
                f"drafter {self.config.name}: its softcap is {stated}, that of the model's head, "
                f"which it uses, {limit}; give the drafter a head of its own"
            )
        if scale != 1.0:
            raise UnsupportedModelError(
                f"drafter {self.config.name}: its logit scale is {scale}, but the model's head, "
                f"which it uses, has a softcap of {limit}; give the drafter a head of its own"
            )

    def ranking(self, dtype: torch.dtype) -> Ranking:
        config, columns = self.config, self.plan.columns
        tokens = None
        if config.draft_ids:
            tokens = torch.tensor(config.draft_ids, device=self.context.device)
        if config.selector is None:
            return Independent(columns, tokens)
        predecessor, successor = (self.weights[name] for name in SELECTOR)
        return CandidateSelector(
            self.context,
            columns=columns,
            top_k=config.selector.top_k,
            tokens=tokens,
            predecessor=predecessor,
            successor=successor,
            hidden=self.weights[SELECTOR_HIDDEN],
            hidden_dtype=dtype,
        )
