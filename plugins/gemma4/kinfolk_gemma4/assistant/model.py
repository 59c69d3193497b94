"""The drafter: a small model without keys and values of its own, which runs once for each token.

It reads the embedding of a token and the hidden state of the row before it, both of the target's
width, and attends to keys and values of two of the target's layers. A pass returns the hidden state
that the next one reads.

All passes of a draft stand at the position of the last chosen token, whatever they drafted before,
and see the committed positions: the drafted tokens have no keys, so it is by the hidden state alone
that a pass knows of them (``transformers``, ``SinglePositionMultiTokenCandidateGenerator``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from kinfolk.draft_api import DraftBlock, DraftPlan, Proposals
from kinfolk.model_api import CommitBatch, Model, StateView, StepBatch
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.residual import Residual
from kinfolk.nn.sandwich import SandwichLayer
from kinfolk.nn.step import Step
from kinfolk.spec.candidates import best_of_logits
from kinfolk.spec.mtp.hidden_state import HiddenState
from kinfolk.weights.loader import Weights
from kinfolk_gemma4.assistant.config import CENTROIDS, INPUTS, OUTPUTS, TABLE, AssistantConfig
from kinfolk_gemma4.model import LayerBuilder
from kinfolk_kernels.embedding.op import EMBEDDING, EmbeddingArguments

NO_ARENA_ROW = -1
"""Instead of a row of the arena: the rows of a draft write none and see none."""


def build(plan: DraftPlan, weights: Weights, context: BuildContext, target: Model) -> Assistant:
    """The assistant over loaded weights, for the built target."""
    config = plan.config
    assert isinstance(config, AssistantConfig)
    first = len(context.state.layers) - len(plan.state)
    inputs: Any = weights[INPUTS]
    outputs: Any = weights[OUTPUTS]
    builder = LayerBuilder(config, weights, context, first)
    return Assistant(
        hidden=HiddenState(first + config.layers, context.ops),
        embed=target.embed,
        inputs=Linear(context, inputs),
        layers=[builder.layer(index) for index in range(config.layers)],
        norm=builder.norm("output_norm"),
        outputs=Linear(context, outputs),
        head=_head(config, weights, context),
        columns=plan.columns,
        dtype=context.dtype,
    )


def _head(config: AssistantConfig, weights: Weights, context: BuildContext) -> Head:
    table: Any = weights[TABLE]
    if not config.centroids:
        return DenseHead(Linear(context, table))
    centroids: Any = weights[CENTROIDS]
    return ClusteredHead(
        Linear(context, centroids),
        context.ops.bind(EMBEDDING, EmbeddingArguments(table)),
        torch.tensor(config.clusters, device=context.device).view(config.centroids, -1),
        config.best_clusters,
    )


class Head(Protocol):
    """Compares rows with tokens."""

    def __call__(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows [L, width] -> logits float32 [L, n], and their tokens int64 [L, n], ``None`` = the
        whole vocabulary in order."""
        ...


class DenseHead:
    """Compares a row with every token."""

    def __init__(self, table: Linear) -> None:
        self.table = table

    def __call__(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.table(normed).float(), None


class ClusteredHead:
    """Compares a row with the tokens [clusters, size] of the ``best`` clusters, those whose
    centroids have the largest products with it.

    No other token is proposed. In ``transformers`` the others have one logit, a little below the
    smallest of these, which is a place-holder and no estimate.
    """

    def __init__(
        self,
        centroids: Linear,
        table: Callable[[torch.Tensor], torch.Tensor],
        tokens: torch.Tensor,
        best: int,
    ) -> None:
        self.centroids, self.table, self.tokens, self.best = centroids, table, tokens, best

    def __call__(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        near = self.centroids(normed).float().topk(self.best, -1).indices
        tokens = self.tokens[near].flatten(1)
        rows = self.table(tokens.flatten()).float().view(*tokens.shape, -1)
        return torch.einsum("lnh,lh->ln", rows, normed.float()), tokens


class Assistant:
    """A built drafter: see :class:`kinfolk.draft_api.ModelDrafter`."""

    def __init__(
        self,
        *,
        hidden: HiddenState,
        embed: Callable[[torch.Tensor], torch.Tensor],
        inputs: Linear,
        layers: Sequence[SandwichLayer],
        norm: RMSNorm,
        outputs: Linear,
        head: Head,
        columns: int,
        dtype: torch.dtype,
    ) -> None:
        self.hidden, self.embed = hidden, embed
        self.inputs, self.layers, self.norm, self.outputs = inputs, tuple(layers), norm, outputs
        self.head, self.columns, self.dtype = head, columns, dtype

    def extend(
        self, features: torch.Tensor | None, batch: StepBatch, view: StateView
    ) -> Sequence[Any]:
        assert features is not None, "the plan asks for features"
        self.hidden.extend(features, batch, view)
        return (features,)

    def commit(self, trace: Sequence[Any], kept: CommitBatch, view: StateView) -> None:
        (features,) = trace
        self.hidden.commit(features, kept, view)

    def draft(self, block: DraftBlock, view: StateView) -> Proposals:
        step = Step(committed_only(block.batch), view)
        tokens, hidden = block.tokens, self.hidden.rows(view)[block.slots]
        chosen, scores = [], []
        for depth in range(1, block.depth + 1):
            normed = self.run(tokens, hidden, step)
            logits, listed = self.head(normed)
            best, score = best_of_logits(
                logits,
                listed,
                block.seed,
                block.positions + depth,
                block.temperature,
                self.columns,
            )
            chosen.append(best)
            scores.append(score)
            tokens, hidden = best[:, 0], self.outputs(normed).float()
        return Proposals(torch.stack(chosen, 1), torch.stack(scores, 1))

    def run(self, tokens: torch.Tensor, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        """One pass: tokens int64 [L], hidden float32 [L, target's width] -> the rows behind the
        last norm [L, width]."""
        both = torch.cat([self.embed(tokens).float(), hidden], 1)
        stream = Residual(self.inputs(both.to(self.dtype)).float())
        for layer in self.layers:
            stream, _ = layer(stream, step)
        return stream.normed(self.norm)[1]


def committed_only(batch: StepBatch) -> StepBatch:
    """A draft's batch whose rows see committed positions, and nothing in the arena."""
    return replace(
        batch,
        ancestors=torch.zeros_like(batch.ancestors),
        arena_row=torch.full_like(batch.arena_row, NO_ARENA_ROW),
    )
