"""A DFlash drafter that can be trained: the forward of many blocks of one text at once.

The runtime's drafter (:mod:`kinfolk.spec.dflash.model`) computes the same block by block, with
kernels that have no gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import linear, silu

from kinfolk.train.dflash.masks import block_mask, context_mask
from kinfolk.train.dflash.shape import EPS, ROPE_BASE, DrafterShape


def initial_parameters(
    shape: DrafterShape, last_norm: torch.Tensor, seed: int
) -> dict[str, torch.Tensor]:
    """Float32 on the CPU, random but for the norms; ``last_norm`` [width] is the target's.

    The drafter's rows go to the target's head, which expects the scale of that norm.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = len(shape.windows)

    def make(name: str, size: tuple[int, ...]) -> torch.Tensor:
        if name == "norm.weight":
            return last_norm.detach().float().cpu().clone()
        if len(size) == 1:
            return torch.ones(size)
        scale = size[-1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            scale /= (2 * layers) ** 0.5  # what adds to the residual stream starts small
        matrix: torch.Tensor = torch.randn(size, generator=generator) * scale
        return matrix

    return {name: make(name, size) for name, size in shape.tensors().items()}


class Network:
    """``parameters`` by the names of :meth:`DrafterShape.tensors`, on the device."""

    def __init__(self, shape: DrafterShape, parameters: Mapping[str, torch.Tensor]) -> None:
        self.shape, self.parameters = shape, parameters
        device = parameters["fc.weight"].device
        pairs = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device=device)
        self._frequencies = ROPE_BASE ** (-pairs / shape.head_dim)

    def __call__(
        self, features: torch.Tensor, noise: torch.Tensor, anchors: torch.Tensor
    ) -> torch.Tensor:
        """features [S, N * width] of the text, noise [A, B, width] embeddings of the blocks'
        tokens, anchors [A] -> the rows after the last norm [A, B, width]."""
        # No row sees the features of the last anchor, or later ones.
        features = features[: int(anchors.max())]
        fused = self._norm(linear(features, self.parameters["fc.weight"]), "hidden_norm")
        places = torch.arange(len(features), device=anchors.device)
        offset = torch.arange(self.shape.block, device=anchors.device)
        turns = self._turns(places), self._turns(anchors[:, None] + offset)
        masks = {
            window: (
                context_mask(anchors, self.shape.block, len(features), window),
                block_mask(self.shape.block, window, anchors.device),
            )
            for window in set(self.shape.windows)
        }
        h = noise
        for layer, window in enumerate(self.shape.windows):
            own = f"layers.{layer}."
            x = self._norm(h, f"{own}input_layernorm")
            h = h + self._attention(f"{own}self_attn.", x, fused, turns, masks[window])
            x = self._norm(h, f"{own}post_attention_layernorm")
            gated = silu(self._linear(x, f"{own}mlp.gate_proj"))
            h = h + self._linear(
                gated * self._linear(x, f"{own}mlp.up_proj"), f"{own}mlp.down_proj"
            )
        return self._norm(h, "norm")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.parameters[f"{name}.weight"])

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        x = x.float()
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
        return scaled * self.parameters[f"{name}.weight"]

    def _turns(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [..., 1, dim / 2] of the rotary embedding."""
        angle = positions[..., None, None] * self._frequencies
        return angle.cos().float(), angle.sin().float()

    def _heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """[..., width] -> [..., heads, dim]"""
        return self._linear(x, name).view(*x.shape[:-1], -1, self.shape.head_dim)

    def _turned(self, x: torch.Tensor, name: str, turns: Any) -> torch.Tensor:
        cos, sin = turns
        first, second = self._norm(x, name).chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _attention(
        self, own: str, x: torch.Tensor, fused: torch.Tensor, turns: Any, masks: Any
    ) -> torch.Tensor:
        """Scores with the context and with the block's own rows are products of their own: rows of
        other blocks are never looked at."""
        of_context, of_block = turns
        seen_context, seen_block = masks
        groups = self.shape.heads // self.shape.kv_heads
        count, block = x.shape[:2]
        q = self._turned(self._heads(x, f"{own}q_proj"), f"{own}q_norm", of_block)
        q = (
            q.view(count, block, -1, groups, self.shape.head_dim) * self.shape.head_dim**-0.5
        )  # [A, B, kv, group, d]
        keys = self._turned(self._heads(fused, f"{own}k_proj"), f"{own}k_norm", of_context)
        values = self._heads(fused, f"{own}v_proj")
        own_keys = self._turned(self._heads(x, f"{own}k_proj"), f"{own}k_norm", of_block)
        own_values = self._heads(x, f"{own}v_proj")
        with_context = torch.einsum("abkgd,skd->abkgs", q, keys)
        with_block = torch.einsum("abkgd,ackd->abkgc", q, own_keys)
        nothing = float("-inf")
        scores = torch.cat(
            [
                with_context.masked_fill(~seen_context[:, :, None, None], nothing),
                with_block.masked_fill(~seen_block[None, :, None, None], nothing),
            ],
            -1,
        )
        mass = scores.float().softmax(-1).to(values.dtype)
        of_context, of_block = mass.split([len(fused), block], -1)
        mixed = torch.einsum("abkgs,skd->abkgd", of_context, values)
        mixed = mixed + torch.einsum("abkgc,ackd->abkgd", of_block, own_values)
        return self._linear(mixed.reshape(count, block, -1), f"{own}o_proj")
