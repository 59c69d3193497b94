"""The blocks that a DFlash drafter learns from: anchors, visible positions, labels and weights.

After "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036), section 4.2: an
anchor is a random position of a text, and its block is that token and masks. Row o of the block
with anchor a predicts the token at a + o.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

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


def context_mask(
    anchors: torch.Tensor, block: int, length: int, window: int | None
) -> torch.Tensor:
    """bool [A, B, length]: positions of the context that a row sees.

    The anchor's own features are not known when it is drafted from, so they are not visible.
    """
    place = torch.arange(length, device=anchors.device)
    seen = (place < anchors[:, None, None]).expand(-1, block, -1)
    if window is not None:
        row = anchors[:, None] + torch.arange(block, device=anchors.device)
        seen = seen & (place > row[..., None] - window)
    return seen


def block_mask(block: int, window: int | None, device: torch.device) -> torch.Tensor:
    """bool [B, B]: rows of its own block that a row sees; windowed layers are causal."""
    offset = torch.arange(block, device=device)
    if window is None:
        return torch.ones(block, block, dtype=torch.bool, device=device)
    return offset[None] <= offset[:, None]
