"""A block for multi-token prediction that can be trained: k passes from many places of a text.

The runtime's drafter (:mod:`kinfolk.spec.mtp.model`) computes the same pass by pass, with kernels
that have no gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import linear

from kinfolk.descriptors import resolve
from kinfolk.nn.rope import frequencies, magnitude
from kinfolk.train.mtp.shape import BlockShape

_ADDED = ("attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight")
"""What adds to the residual stream starts small."""


def initial_parameters(
    shape: BlockShape, last_norm: torch.Tensor, seed: int
) -> dict[str, torch.Tensor]:
    """Float32 on the CPU, random but for the norms; ``last_norm`` [width] is the target's, whose
    head the block's rows go to."""
    generator = torch.Generator().manual_seed(seed)

    def make(name: str, size: tuple[int, ...]) -> torch.Tensor:
        if name.endswith("shared_head_norm.weight"):
            return last_norm.detach().float().cpu().clone()
        if name.endswith("norm.weight"):
            return torch.ones(size)
        scale = size[-1] ** -0.5 * (math.sqrt(0.5) if name.endswith(_ADDED) else 1)
        numbers: torch.Tensor = torch.randn(size, generator=generator) * scale
        return numbers

    return {name: make(name, size) for name, size in shape.tensors.items()}


class BlockNetwork:
    """``parameters`` by the names of :attr:`BlockShape.tensors`, on the device."""

    def __init__(self, shape: BlockShape, parameters: Mapping[str, torch.Tensor]) -> None:
        self.config, self.layer = shape.config, shape.layer
        self.parameters = parameters
        self._feed_forward = resolve(shape.layer.feed_forward)
        device = next(iter(parameters.values())).device
        self._frequencies = frequencies(shape.layer.rope).to(device)
        self._magnitude = magnitude(shape.layer.rope)

    def __call__(
        self,
        hidden: torch.Tensor,
        text: torch.Tensor,
        tokens: torch.Tensor,
        anchors: torch.Tensor,
    ) -> torch.Tensor:
        """What k passes from A anchors find, behind the last norm: [A, k, width].

        hidden   [S, width]     the target's, behind its last norm, of the text's positions
        text     [S, width]     embeddings of its tokens
        tokens   [A, k, width]  embeddings of the token that each pass reads, the anchor's first
        anchors  int64 [A]      their positions

        Pass 1 of an anchor a is the row of the text at a: it reads token a and the target's hidden
        state of a - 1. Pass j stands at a + j - 1, reads the hidden state that pass j - 1 found,
        and sees the rows of the text up to a and the passes from the second to itself.
        """
        count = int(anchors.max()) + 1
        before = torch.cat([torch.zeros_like(hidden[:1]), hidden[: count - 1]])
        rows = self._inputs(text[:count], before)
        places = torch.arange(count, device=anchors.device)
        keys, values = self._keys_values(rows, places)
        seen = places <= anchors[:, None]  # [A, S]
        x = rows[anchors]
        found: list[torch.Tensor] = []
        own: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index in range(tokens.shape[1]):
            position = anchors + index
            if index:
                x = self._inputs(tokens[:, index], found[-1])
                own.append(self._keys_values(x, position))
            x = x + self._attention(x, position, (keys, values), seen, own)
            fed = self._norm(x, "post_attention_norm")
            x = x + self._feed_forward(self.config, self._weight, fed)
            found.append(self._norm(x, "nextn.shared_head_norm"))
        return torch.stack(found, 1)

    def _weight(self, name: str) -> torch.Tensor:
        return self.parameters[f"blk.{self.config.layers}.{name}.weight"]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        x = x.float()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return x * scale * self._weight(name)

    def _inputs(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """What the layer reads [n, width]: tokens and hidden states of the positions before."""
        both = self._norm(embedded, "nextn.enorm"), self._norm(hidden, "nextn.hnorm")
        found: torch.Tensor = linear(torch.cat(both, -1), self._weight("nextn.eh_proj"))
        return found.float()

    def _heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """[n, width] -> [n, heads, dim]"""
        rows: torch.Tensor = linear(x, self._weight(name))
        return rows.view(*rows.shape[:-1], -1, self.layer.head_dim)

    def _turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Heads [n, heads, dim] whose first dimensions turn by the angles of their positions."""
        angle = positions[:, None, None] * self._frequencies
        cos, sin = ((turn * self._magnitude).float() for turn in (angle.cos(), angle.sin()))
        half = cos.shape[-1]
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)

    def _keys_values(
        self, rows: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the layer's inputs [n, width], each [n, kv_heads, dim]."""
        x = self._norm(rows, "attn_norm")
        keys = self._norm(self._heads(x, "attn_k"), "attn_k_norm")
        return self._turned(keys, positions), self._heads(x, "attn_v")

    def _attention(
        self,
        rows: torch.Tensor,
        positions: torch.Tensor,
        context: tuple[torch.Tensor, torch.Tensor],
        seen: torch.Tensor,
        own: Any,
    ) -> torch.Tensor:
        """[A, width]: row n sees ``seen`` [A, S] of the context, and row n of every pass of
        ``own``."""
        layer = self.layer
        x = self._norm(rows, "attn_norm")
        q, gate = self._heads(x, "attn_q").unflatten(1, (layer.heads, 2)).unbind(2)
        q = self._turned(self._norm(q, "attn_q_norm"), positions) * layer.head_dim**-0.5
        q = q.unflatten(1, (layer.kv_heads, -1))  # [A, kv, group, dim]
        keys, values = context
        scores = torch.einsum("akgd,skd->akgs", q, keys)
        scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
        if own:
            own_keys, own_values = (torch.stack(each, 1) for each in zip(*own, strict=True))
            scores = torch.cat([scores, torch.einsum("akgd,ajkd->akgj", q, own_keys)], -1)
        mass = scores.float().softmax(-1).to(values.dtype)
        mixed = torch.einsum("akgs,skd->akgd", mass[..., : len(keys)], values)
        if own:
            of_own = mass[..., len(keys) :]
            mixed = mixed + torch.einsum("akgj,ajkd->akgd", of_own, own_values)
        mixed = mixed.flatten(1, 2) * gate.sigmoid()
        return linear(mixed.flatten(1), self._weight("attn_output"))
