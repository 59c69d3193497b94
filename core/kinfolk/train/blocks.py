"""The blocks that a drafter learns from: anchors, labels and weights, the loss and what is hit.

After "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036), section 4.2: an
anchor is a random position of a text, and its block is that token and those to guess. Row o of the
block with anchor a is of the token at a + o.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from kinfolk.train.target import FrozenTarget
from kinfolk.train.texts import Text


@dataclass(frozen=True, slots=True)
class Blocks:
    """A blocks of B rows in one text.

    tokens    int64 [A]      the anchors' tokens
    anchors   int64 [A]      their positions
    labels    int64 [A, B]   the token at the row's position, 0 where there is none
    weights   float32 [A, B] of the row's loss; 0 for row 0 and behind the text
    """

    tokens: torch.Tensor
    anchors: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor

    @property
    def weight(self) -> float:
        return float(self.weights.sum())

    def to(self, device: torch.device) -> Blocks:
        return Blocks(
            self.tokens.to(device),
            self.anchors.to(device),
            self.labels.to(device),
            self.weights.to(device),
        )


def sample_anchors(text: Text, count: int, generator: torch.Generator) -> torch.Tensor:
    """At most ``count`` different positions, in order, int64 [A].

    The anchor's own token and the one behind it are to be predicted, so both are behind the prompt;
    position 0 is none, because no text is drafted for without a position before it.
    """
    first = max(1, text.first)
    possible = torch.arange(first, len(text.tokens) - 1)
    chosen = torch.randperm(len(possible), generator=generator)[:count]
    return possible[chosen].sort().values


def blocks_at(text: Text, anchors: torch.Tensor, block: int, gamma: float) -> Blocks:
    """The blocks with these anchors, on the CPU."""
    tokens = torch.tensor(text.tokens)
    offset = torch.arange(block)
    position = anchors[:, None] + offset
    known = (position < len(tokens)) & (offset > 0)
    labels = torch.where(known, tokens[position.clamp(max=len(tokens) - 1)], 0)
    decay = torch.exp(-(offset - 1).clamp(min=0) / gamma)
    return Blocks(tokens[anchors], anchors, labels, known * decay)


class BlockDrafter(ABC):
    """The part of a :class:`~kinfolk.train.kinds.TrainedDrafter` that learns from blocks: a text
    gives ``anchors`` of them a step, and the loss of row o weighs exp(-(o - 1) / gamma)."""

    def __init__(self, target: FrozenTarget, *, block: int, gamma: float, anchors: int) -> None:
        self.target, self.depth = target, block - 1
        self.gamma, self.anchors = gamma, anchors

    @abstractmethod
    def logits(self, text: Text, blocks: Blocks, counted: torch.Tensor) -> torch.Tensor:
        """float32 [n, vocabulary] for the n guessed tokens that are ``counted`` bool [A, B]; row 0
        never is."""

    def sample(self, text: Text, generator: torch.Generator) -> Blocks:
        anchors = sample_anchors(text, self.anchors, generator)
        return blocks_at(text, anchors, self.depth + 1, self.gamma)

    def loss(self, text: Text, blocks: Blocks) -> torch.Tensor:
        """The weighted sum of the cross entropies of all rows."""
        blocks = blocks.to(self.target.device)
        counted = blocks.weights > 0
        logits = self.logits(text, blocks, counted)
        each = torch.nn.functional.cross_entropy(logits, blocks.labels[counted], reduction="none")
        return (each * blocks.weights[counted]).sum()

    @torch.no_grad()
    def hits(self, text: Text, blocks: Blocks) -> torch.Tensor:
        """int8 [A, depth]: 1 where the best token of a row is the text's, 0 where it is another,
        -1 behind the text."""
        blocks = blocks.to(self.target.device)
        counted = blocks.weights > 0
        best = self.logits(text, blocks, counted).argmax(-1)
        found = torch.full(counted.shape, -1, dtype=torch.int8, device=counted.device)
        found[counted] = (best == blocks.labels[counted]).to(torch.int8)
        return found[:, 1:].cpu()
