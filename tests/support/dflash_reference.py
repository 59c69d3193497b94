"""A plain implementation of DFlash in float32, for tests: loops and element-wise masks, no cache of
blocks, no code of the runtime.

After "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036) and its authors'
implementation; weights have the names of their safetensors files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shape:
    """``yarn``: factor, original context, beta_fast, beta_slow. ``conv``: taps, group size.
    ``selector``: rank, candidates. ``d2t``: target's token of each row of a reduced head."""

    windows: tuple[int | None, ...] = (None, None)
    causal: tuple[bool, ...] = (False, False)
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    ff: int = 96
    vocabulary: int = 101
    feature_layers: tuple[int, ...] = (1, 3, 4)
    block: int = 6
    mask: int = 100
    theta: float = 10000.0
    eps: float = 1e-6
    yarn: tuple[float, int, float, float] | None = None
    context_norm: bool = False
    feature_norms: bool = False
    gate: str = ""
    conv: tuple[int, int] | None = None
    selector: tuple[int, int] | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None
    scale: float | None = None
    value_scale: float = 1.0
    d2t: tuple[int, ...] = ()
    activation: str = "silu"


def shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The drafter's tensors without embedding and head."""
    h, q, kv = shape.width, shape.heads * shape.dim, shape.kv_heads * shape.dim
    found: dict[str, tuple[int, ...]] = {
        "fc.weight": (h, len(shape.feature_layers) * h),
        "hidden_norm.weight": (h,),
        "norm.weight": (h,),
    }
    if shape.feature_norms:
        for index in range(len(shape.feature_layers)):
            found[f"aux_hidden_norms.{index}.weight"] = (h,)
    if shape.selector:
        rank = shape.selector[0]
        found["candidate_selector.predecessor_codebook"] = (shape.vocabulary, rank)
        found["candidate_selector.successor_codebook"] = (shape.vocabulary, rank)
        found["candidate_selector.hidden_projection.weight"] = (rank, h)
    for layer in range(len(shape.windows)):
        p = f"layers.{layer}."
        found[p + "input_layernorm.weight"] = found[p + "post_attention_layernorm.weight"] = (h,)
        found[p + "self_attn.q_proj.weight"] = (q, h)
        found[p + "self_attn.k_proj.weight"] = found[p + "self_attn.v_proj.weight"] = (kv, h)
        found[p + "self_attn.o_proj.weight"] = (h, q)
        found[p + "self_attn.q_norm.weight"] = found[p + "self_attn.k_norm.weight"] = (shape.dim,)
        if shape.gate:
            rows = shape.heads if shape.gate == "head" else q
            found[p + "self_attn.g_proj.weight"] = (rows, h)
        found[p + "mlp.gate_proj.weight"] = found[p + "mlp.up_proj.weight"] = (shape.ff, h)
        found[p + "mlp.down_proj.weight"] = (h, shape.ff)
        if shape.conv:
            taps, group = shape.conv
            for part in ("attention_conv", "mlp_conv"):
                found[f"{p}{part}.base_kernel"] = (2, taps, h)
                found[f"{p}{part}.kernel_projection.weight"] = (2 * taps * (h // group), h)
    return found


def random_tensors(shape: Shape, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights none of which is trivial; bfloat16 holds them exactly."""
    generator = torch.Generator().manual_seed(seed)

    def make(name: str, size: tuple[int, ...]) -> torch.Tensor:
        values = torch.randn(size, generator=generator)
        if "norm" in name:
            values = 1 + 0.3 * values
        elif "codebook" in name or "base_kernel" in name:
            values = 0.6 * values
        else:
            values = 1.3 * values / size[-1] ** 0.5
        return values.bfloat16().float()

    return {name: make(name, size) for name, size in shapes(shape).items()}


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def inverse_frequencies(shape: Shape) -> tuple[list[float], float]:
    """The angle of each pair for one position, and the factor on cosine and sine."""
    d, theta = shape.dim, shape.theta
    plain = [theta ** (-2 * i / d) for i in range(d // 2)]
    if shape.yarn is None:
        return plain, 1.0
    factor, original, fast, slow = shape.yarn

    def pair(beta: float) -> float:
        return d * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair(fast)), 0)
    high = min(math.ceil(pair(slow)), d - 1)
    ramp = [min(max((i - low) / max(high - low, 0.001), 0.0), 1.0) for i in range(d // 2)]
    mixed = [(1 - r) * f + r * f / factor for f, r in zip(plain, ramp, strict=True)]
    return mixed, 0.1 * math.log(factor) + 1


def rotate(x: torch.Tensor, positions: list[int], shape: Shape) -> torch.Tensor:
    """x [rows, heads, dim], halves of a head as pairs."""
    inverse, magnitude = inverse_frequencies(shape)
    angle = torch.tensor([[p * f for f in inverse] for p in positions], dtype=torch.float64)
    cos, sin = (angle.cos() * magnitude).float(), (angle.sin() * magnitude).float()
    cos, sin = (torch.cat([t, t], -1)[:, None] for t in (cos, sin))
    half = shape.dim // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class Reference:
    """One sequence. ``embedding`` and ``head`` are tables [vocabulary or reduced, width]."""

    def __init__(
        self,
        shape: Shape,
        tensors: dict[str, torch.Tensor],
        embedding: torch.Tensor,
        head: torch.Tensor,
    ) -> None:
        self.shape, self.w = shape, tensors
        self.embedding, self.head = embedding, head
        self.keys: list[list[torch.Tensor]] = [[] for _ in shape.windows]
        self.values: list[list[torch.Tensor]] = [[] for _ in shape.windows]

    @property
    def length(self) -> int:
        return len(self.keys[0])

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms(x, self.w[name], self.shape.eps)

    def heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return (x @ self.w[name].T).view(len(x), -1, self.shape.dim)

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        if shape.feature_norms:
            parts = features.split(shape.width, 1)
            normed = [self.norm(x, f"aux_hidden_norms.{k}.weight") for k, x in enumerate(parts)]
            features = torch.cat(normed, 1)
        return self.norm(features @ self.w["fc.weight"].T, "hidden_norm.weight")

    def extend(self, features: torch.Tensor) -> None:
        """features [rows, feature_layers * width] of the next positions."""
        fused = self.fused(features)
        positions = list(range(self.length, self.length + len(features)))
        for layer in range(len(self.shape.windows)):
            p = f"layers.{layer}."
            source = fused
            if self.shape.context_norm:
                source = self.norm(fused, p + "input_layernorm.weight")
            keys = self.heads(source, p + "self_attn.k_proj.weight")
            keys = self.norm(keys, p + "self_attn.k_norm.weight")
            self.keys[layer] += rotate(keys, positions, self.shape).unbind(0)
            self.values[layer] += self.heads(source, p + "self_attn.v_proj.weight").unbind(0)

    def visible(self, layer: int, query: int, key: int) -> bool:
        """Whether row ``query`` of the block sees position ``key``, which may be in the block."""
        start, window = self.length, self.shape.windows[layer]
        position = start + query
        if window is not None and position - key >= window:
            return False
        return key <= position if self.shape.causal[layer] else True

    def attention(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        shape, p = self.shape, f"layers.{layer}.self_attn."
        positions = list(range(self.length, self.length + len(x)))
        q = self.norm(self.heads(x, p + "q_proj.weight"), p + "q_norm.weight")
        k = self.norm(self.heads(x, p + "k_proj.weight"), p + "k_norm.weight")
        q, k = rotate(q, positions, shape), rotate(k, positions, shape)
        v = self.heads(x, p + "v_proj.weight")
        keys = [*self.keys[layer], *k.unbind(0)]
        values = [*self.values[layer], *v.unbind(0)]
        scale = shape.dim**-0.5 if shape.scale is None else shape.scale
        group, rows = shape.heads // shape.kv_heads, []
        for row in range(len(x)):
            seen = [n for n in range(len(keys)) if self.visible(layer, row, n)]
            heads = []
            for head in range(shape.heads):
                ks = torch.stack([keys[n][head // group] for n in seen])
                vs = torch.stack([values[n][head // group] for n in seen])
                heads.append((ks @ q[row, head] * scale).softmax(0) @ vs)
            rows.append(torch.stack(heads))
        out = torch.stack(rows)
        if shape.gate:
            gate = torch.log1p((x @ self.w[p + "g_proj.weight"].T).exp())
            out = out * gate.view(len(x), shape.heads, -1)
        return out.flatten(1) @ self.w[p + "o_proj.weight"].T * shape.value_scale

    def feed_forward(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        p = f"layers.{layer}.mlp."
        gate = x @ self.w[p + "gate_proj.weight"].T
        if self.shape.activation == "silu":
            gate = gate * torch.sigmoid(gate)
        else:
            gate = torch.nn.functional.gelu(gate, approximate="tanh")
        return (gate * (x @ self.w[p + "up_proj.weight"].T)) @ self.w[p + "down_proj.weight"].T

    def convolved(self, name: str, side: int, source: torch.Tensor, x: torch.Tensor):
        """The convolution of the rows ``x``; its kernel is computed from ``source``."""
        assert self.shape.conv is not None
        taps, group = self.shape.conv
        dynamic = source @ self.w[f"{name}.kernel_projection.weight"].T
        dynamic = dynamic.view(len(x), 2, taps, -1)
        base, out = self.w[f"{name}.base_kernel"], torch.zeros_like(x)
        for t in range(len(x)):
            for s in range(min(taps, t + 1)):
                for channel in range(x.shape[1]):
                    kernel = base[side, s, channel] + dynamic[t, side, s, channel // group]
                    out[t, channel] += kernel * x[t - s, channel]
        return out

    def part(self, layer: int, name: str, x: torch.Tensor, run) -> torch.Tensor:
        if self.shape.conv is None:
            return run(layer, x)
        conv = f"layers.{layer}.{name}"
        return self.convolved(conv, 1, x, run(layer, self.convolved(conv, 0, x, x)))

    def hidden(self, anchor: int) -> torch.Tensor:
        """The rows of the block after the last norm [block, width]."""
        tokens = [anchor] + [self.shape.mask] * (self.shape.block - 1)
        h = self.embedding[tokens] * self.shape.embedding_scale
        for layer in range(len(self.shape.windows)):
            p = f"layers.{layer}."
            x = self.norm(h, p + "input_layernorm.weight")
            h = h + self.part(layer, "attention_conv", x, self.attention)
            x = self.norm(h, p + "post_attention_layernorm.weight")
            h = h + self.part(layer, "mlp_conv", x, self.feed_forward)
        return self.norm(h, "norm.weight")

    def logits(self, anchor: int) -> torch.Tensor:
        """[block - 1, rows of the head]: row k is for the token k + 1 behind the anchor."""
        logits = self.hidden(anchor)[1:] @ self.head.T * self.shape.logit_scale
        if self.shape.softcap is not None:
            logits = self.shape.softcap * torch.tanh(logits / self.shape.softcap)
        return logits

    def walk(self, anchor: int) -> tuple[list[list[int]], list[list[float]]]:
        """The candidates of each row by the selector, best first, and their log-probabilities."""
        assert self.shape.selector is not None
        hidden, logits = self.hidden(anchor)[1:], self.logits(anchor)
        previous, tokens, scores = anchor, [], []
        predecessor = self.w["candidate_selector.predecessor_codebook"]
        successor = self.w["candidate_selector.successor_codebook"]
        projection = self.w["candidate_selector.hidden_projection.weight"]
        for row in range(len(logits)):
            order = sorted(range(logits.shape[1]), key=lambda c: -float(logits[row, c]))
            candidates = order[: self.shape.selector[1]]
            projected = projection @ hidden[row]
            score = [
                float(logits[row, c] + (predecessor[previous] * projected * successor[c]).sum())
                for c in candidates
            ]
            log_z = math.log(sum(math.exp(s - max(score)) for s in score)) + max(score)
            best = sorted(range(len(candidates)), key=lambda n: -score[n])
            tokens.append([candidates[n] for n in best])
            scores.append([score[n] - log_z for n in best])
            previous = tokens[-1][0]
        return tokens, scores
