"""The drafter of a block for multi-token prediction.

The block reads the embedding of a token and the target's hidden state of the row before it, and
predicts the token that follows. A draft is several passes: each takes the token and the hidden
state of the pass before.

An entry of the block's keys and values depends on these two only, not on other rows, so behind a
step of the target they are stored without running the layer. Its position is that of the token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from kinfolk.descriptors import resolve
from kinfolk.draft_api import DraftBlock, DraftPlan, Proposals
from kinfolk.model_api import CommitBatch, Model, StateView, StepBatch
from kinfolk.nn.context import BuildContext
from kinfolk.nn.key_values import StoringLayer
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.residual import Residual
from kinfolk.nn.step import Step
from kinfolk.spec.candidates import best_of_logits
from kinfolk.spec.mtp.hidden_state import HiddenState
from kinfolk.spec.mtp.prepare import MTPConfig
from kinfolk.types import NO_PARENT
from kinfolk.weights.loader import Weights
from kinfolk_kernels.embedding.op import EMBEDDING, EmbeddingArguments
from kinfolk_kernels.row_layout import LaunchTraits, RowLayout

Rows = Callable[[torch.Tensor], torch.Tensor]


def build(plan: DraftPlan, weights: Weights, context: BuildContext, target: Model) -> MTP:
    """The drafter over loaded weights, for the built target."""
    config = plan.config
    assert isinstance(config, MTPConfig)
    eps, embed = config.target.norm_eps, target.embed
    if config.own_embedding:
        table: Any = weights[config.tensor("embed_tokens")]
        embed = context.ops.bind(EMBEDDING, EmbeddingArguments(table))
    projection: Any = weights[config.tensor("eh_proj")]
    logits: Rows = target.logits
    dtype = target.norm(torch.zeros(1, config.target.width, device=context.device)).dtype
    if config.own_head:
        head: Any = weights[config.tensor("shared_head_head")]
        dtype = context.dtype if isinstance(head, torch.Tensor) else torch.float32
        logits = Linear(context, head, dtype)
    tokens = None
    if config.head_tokens is not None:
        tokens = torch.tensor(config.head_tokens, device=context.device)
    return MTP(
        passes=plan.depth,
        inputs=Inputs(
            embed,
            RMSNorm(context, weights.tensor(config.tensor("enorm")), eps),
            RMSNorm(context, weights.tensor(config.tensor("hnorm")), eps),
            Linear(context, projection),
        ),
        layer=resolve(config.layer_builder)(config.target, weights, context, config.layer),
        hidden=HiddenState(config.layer + 1, context.ops),
        norm=RMSNorm(context, weights.tensor(config.tensor("shared_head_norm")), eps, dtype),
        post_norm=config.post_norm,
        logits=logits,
        tokens=tokens,
        columns=plan.columns,
    )


class Inputs:
    """What the layer reads: W [norm(embedding of a token), norm(hidden state before it)]."""

    def __init__(self, embed: Rows, e_norm: RMSNorm, h_norm: RMSNorm, projection: Linear) -> None:
        self.embed, self.e_norm, self.h_norm = embed, e_norm, h_norm
        self.projection = projection

    def __call__(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """tokens int64 [R] and hidden [R, width] -> float32 [R, width]."""
        both = (self.e_norm(self.embed(tokens).float()), self.h_norm(hidden.float()))
        return self.projection(torch.cat(both, 1)).float()


class MTP:
    """A built drafter: see :class:`kinfolk.draft_api.ModelDrafter`.

    ``post_norm``: hidden states are those behind the last norm, of the target and of the block.
    """

    def __init__(
        self,
        *,
        passes: int,
        inputs: Inputs,
        layer: StoringLayer,
        hidden: HiddenState,
        norm: RMSNorm,
        post_norm: bool,
        logits: Rows,
        tokens: torch.Tensor | None,
        columns: int,
    ) -> None:
        self.passes, self.inputs, self.layer = passes, inputs, layer
        self.hidden, self.norm, self.post_norm = hidden, norm, post_norm
        self.logits, self.tokens, self.columns = logits, tokens, columns

    # -- state --------------------------------------------------------------------------------

    def extend(
        self, features: torch.Tensor | None, batch: StepBatch, view: StateView
    ) -> Sequence[Any]:
        assert features is not None, "the plan asks for features"
        committed = self.hidden.rows(view)[batch.slot_of_sequence[batch.sequence_of_row]]
        parent = batch.parent_row[:, None]
        before = torch.where(parent >= 0, features[parent[:, 0].clamp_min(0)].float(), committed)
        self.layer.store(self.inputs(batch.tokens, before), batch, view)
        self.hidden.extend(features, batch, view)
        return (features,)

    def commit(self, trace: Sequence[Any], kept: CommitBatch, view: StateView) -> None:
        (features,) = trace
        self.hidden.commit(features, kept, view)

    # -- drafting -----------------------------------------------------------------------------

    def draft(self, block: DraftBlock, view: StateView) -> Proposals:
        tokens, hidden = block.tokens, self.hidden.rows(view)[block.slots]
        inputs: list[torch.Tensor] = []
        chosen, scores = [], []
        for depth in range(1, block.depth + 1):
            inputs.append(self.inputs(tokens, hidden))
            step = Step(first_rows(block.batch, self.passes, depth), view)
            total, normed = self.run(torch.stack(inputs, 1), step)
            hidden = normed if self.post_norm else total
            best, score = best_of_logits(
                self.logits(normed).float(),
                self.tokens,
                block.seed,
                block.positions + depth,
                block.temperature,
                self.columns,
            )
            chosen.append(best)
            scores.append(score)
            tokens = best[:, 0]
        return Proposals(torch.stack(chosen, 1), torch.stack(scores, 1))

    def run(self, inputs: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs float32 [L, n, width] of the first rows of each lane -> the last row of each
        [L, width], before and behind the last norm.

        Rows see one another in one step only, so the keys of the rows before are computed again;
        what is large, the feed-forward network and the head, runs for the last rows alone.
        """
        layer = self.layer.layer
        rows = inputs.flatten(0, 1)
        mixed, _ = layer.mixer(layer.mixer_norm(rows), step)
        last = mixed.view(*inputs.shape[:2], -1)[:, -1].contiguous()
        total, normed = Residual(inputs[:, -1].contiguous(), last).normed(layer.feed_norm)
        found = Residual(total, layer.feed_forward(normed)).normed(self.norm)
        return found[0], found[1]


def first_rows(batch: StepBatch, block: int, count: int) -> StepBatch:
    """The first ``count`` rows of each lane of a draft's batch, whose lanes have ``block`` rows. A
    row sees the rows of its lane up to itself."""
    device = batch.tokens.device
    lanes = batch.rows // block
    lane = torch.arange(lanes, device=device).repeat_interleave(count)
    row = torch.arange(lanes * count, device=device)
    place = row - lane * count
    taken = lane * block + place
    arena_row = batch.arena_row[taken]
    rows, slots, drafted = batch.layout.spans[:, 1:].unbind(1)
    starts = torch.arange(0, lanes * count, count, device=device)
    spans = (starts, torch.where(rows > 0, count, 0), slots, drafted)
    segments = tuple(
        replace(each, start=each.sequence * count, stop=(each.sequence + 1) * count)
        for each in batch.layout.segments
    )
    return replace(
        batch,
        tokens=batch.tokens[taken],
        positions=batch.positions[taken],
        sequence_of_row=lane,
        parent_row=torch.where(place == 0, NO_PARENT, row - 1),
        limit=batch.limit[taken],
        ancestors=torch.where(arena_row >= 0, (1 << place + 1) - 1, 0),
        arena_row=arena_row,
        write_row=batch.write_row[:, taken],
        logit_rows=row,
        layout=RowLayout(
            torch.stack(spans, 1).int(),
            batch.layout.path[taken],
            batch.layout.slices,
            batch.layout.short,
            batch.layout.long,
            row.int(),
            LaunchTraits(False, count, True, (count,)),
            segments,
        ),
    )
