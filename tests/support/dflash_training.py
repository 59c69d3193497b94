"""Trains a small drafter on one text, by the definition of training in the paper: all blocks of the
text at once, with an element-wise mask. Of the runtime it uses nothing."""

from __future__ import annotations

import torch
from dflash_reference import Shape, random_tensors, rms, rotate


class Trainer:
    """``features`` [S, feature layers * width] and ``tokens`` [S] of one text; ``embedding`` and
    ``head`` are frozen tables. Row o of a block whose anchor is position a predicts token a + o."""

    def __init__(
        self,
        shape: Shape,
        features: torch.Tensor,
        tokens: list[int],
        embedding: torch.Tensor,
        head: torch.Tensor,
        *,
        first: int,
    ) -> None:
        self.shape, self.features, self.head = shape, features, head
        self.tokens = torch.tensor(tokens)
        self.anchors = torch.arange(first, len(tokens) - 1)
        self.w = {name: t.clone().requires_grad_() for name, t in random_tensors(shape).items()}
        offsets = torch.arange(shape.block)
        self.anchor = self.anchors.repeat_interleave(shape.block)
        self.offset = offsets.repeat(len(self.anchors))
        self.position = self.anchor + self.offset
        rows = torch.where(self.offset == 0, self.tokens[self.anchor], shape.mask)
        self.noise = embedding[rows] * shape.embedding_scale
        self.known = (self.offset > 0) & (self.position < len(tokens))

    def mask(self, layer: int) -> torch.Tensor:
        """bool [rows, S + rows]: which positions of the context and rows of blocks a row sees."""
        window, causal = self.shape.windows[layer], self.shape.causal[layer]
        places = torch.arange(len(self.tokens))
        context = places[None] < self.anchor[:, None]
        block = self.anchor[:, None] == self.anchor[None]
        if window is not None:
            context &= places[None] > self.position[:, None] - window
            block &= self.position[None] > self.position[:, None] - window
        if causal:
            block &= self.offset[None] <= self.offset[:, None]
        return torch.cat([context, block], 1)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms(x, self.w[name], self.shape.eps)

    def attention(self, layer: int, x: torch.Tensor, fused: torch.Tensor) -> torch.Tensor:
        p, shape = f"layers.{layer}.self_attn.", self.shape

        def heads(rows: torch.Tensor, name: str) -> torch.Tensor:
            return (rows @ self.w[f"{p}{name}_proj.weight"].T).view(len(rows), -1, shape.dim)

        places = [*range(len(self.tokens)), *self.position.tolist()]
        both = torch.cat([fused, x])
        q = rotate(self.norm(heads(x, "q"), p + "q_norm.weight"), self.position.tolist(), shape)
        k = rotate(self.norm(heads(both, "k"), p + "k_norm.weight"), places, shape)
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), *(t.transpose(0, 1) for t in (k, heads(both, "v"))),
            attn_mask=self.mask(layer), enable_gqa=True,
        )  # fmt: skip
        return out.transpose(0, 1).flatten(1) @ self.w[p + "o_proj.weight"].T

    def loss(self) -> torch.Tensor:
        fused = self.norm(self.features @ self.w["fc.weight"].T, "hidden_norm.weight")
        h = self.noise
        for layer in range(len(self.shape.windows)):
            p = f"layers.{layer}."
            h = h + self.attention(layer, self.norm(h, p + "input_layernorm.weight"), fused)
            x = self.norm(h, p + "post_attention_layernorm.weight")
            gate, up, down = (self.w[f"{p}mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
            h = h + (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
        logits = self.norm(h, "norm.weight")[self.known] @ self.head.T
        return torch.nn.functional.cross_entropy(logits, self.tokens[self.position[self.known]])

    def run(self, steps: int) -> dict[str, torch.Tensor]:
        """The trained tensors."""
        optimizer = torch.optim.AdamW(self.w.values(), lr=3e-3, weight_decay=0)
        for _ in range(steps):
            optimizer.zero_grad()
            self.loss().backward()
            torch.nn.utils.clip_grad_norm_(self.w.values(), 1.0)
            optimizer.step()
        return {name: tensor.detach() for name, tensor in self.w.items()}
