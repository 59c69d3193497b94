"""The training model: a short ``Qwen3_5ForCausalLM`` of transformers, with a fast delta rule.

Parameter names and shapes are those of transformers, so each can load the state dict of the other.
There is no cache: sampling with this model recomputes the prefix, and kinfolk serves the result.
"""

from __future__ import annotations

import math

import torch
from pocket.config import ModelConfig
from pocket.delta import gated_delta_rule
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """RMSNorm in fp32; the stored weight is the factor minus one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return (x32 * (1.0 + self.weight.float())).type_as(x)


class GatedRMSNorm(nn.Module):
    """RMSNorm in fp32, then a SiLU gate; the stored weight is the factor itself."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return (x32 * self.weight.float() * F.silu(gate.float())).type_as(x)


class ShortConv(nn.Module):
    """Causal depthwise convolution over [B, T, channels]; tap -1 is the current token."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))

    def forward(self, x: Tensor) -> Tensor:
        taps = self.weight.shape[-1]
        padded = F.pad(x, (0, 0, taps - 1, 0))
        length = x.shape[1]
        weight = self.weight.float()
        # Sums of shifted inputs keep the projections' layout and fuse with the ops after them.
        out = padded[:, :length].float() * weight[:, 0, 0]
        for tap in range(1, taps):
            out = out + padded[:, tap : tap + length].float() * weight[:, 0, tap]
        return F.silu(out).type_as(x)


class GatedDeltaNet(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.key_heads, self.key_width = config.linear_num_key_heads, config.linear_key_head_dim
        self.value_heads = config.linear_num_value_heads
        self.value_width = config.linear_value_head_dim
        channels = 2 * config.key_dim + config.value_dim
        hidden = config.hidden_size
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, config.value_dim, bias=False)
        self.in_proj_b = nn.Linear(hidden, self.value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, self.value_heads, bias=False)
        self.conv1d = ShortConv(channels, config.linear_conv_kernel_dim)
        self.dt_bias = nn.Parameter(torch.empty(self.value_heads))
        self.A_log = nn.Parameter(torch.empty(self.value_heads))
        self.norm = GatedRMSNorm(self.value_width, config.rms_norm_eps)
        self.out_proj = nn.Linear(config.value_dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        key_dim = self.key_heads * self.key_width
        mixed = self.conv1d(self.in_proj_qkv(x))
        q = _unit(mixed[..., :key_dim].reshape(batch, length, self.key_heads, self.key_width))
        k = mixed[..., key_dim : 2 * key_dim]
        k = _unit(k.reshape(batch, length, self.key_heads, self.key_width))
        v = mixed[..., 2 * key_dim :].reshape(batch, length, self.value_heads, self.value_width)
        beta = self.in_proj_b(x).float().sigmoid()
        step = F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        out = gated_delta_rule(q, k, v, -self.A_log.float().exp() * step, beta)
        out = self.norm(out, self.in_proj_z(x).view_as(out))
        return self.out_proj(out.reshape(batch, length, -1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = config.head_dim
        self.rotary = config.rotary_dim
        self.theta = config.rope_theta
        hidden = config.hidden_size
        self.q_proj = nn.Linear(hidden, self.heads * self.width * 2, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, hidden, bias=False)
        self.q_norm = RMSNorm(self.width, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.width, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        both = self.q_proj(x).view(batch, length, self.heads, 2 * self.width)
        q, gate = both.split(self.width, dim=-1)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.width)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.width)
        q, k = self._rotate(self.q_norm(q)), self._rotate(self.k_norm(k))
        share = self.heads // self.kv_heads
        k, v = k.repeat_interleave(share, dim=2), v.repeat_interleave(share, dim=2)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        out = out.transpose(1, 2) * gate.sigmoid()
        return self.o_proj(out.reshape(batch, length, -1))  # type: ignore[no-any-return]

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotary embedding of the first ``rotary`` dimensions; i pairs with i + ``rotary`` / 2."""
        half = self.rotary // 2
        index = torch.arange(half, dtype=torch.float32, device=x.device)
        place = torch.arange(x.shape[1], dtype=torch.float32, device=x.device)
        angle = place[:, None] * self.theta ** (-index / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., :half].float(), x[..., half : self.rotary].float()
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.cat((turned.type_as(x), x[..., self.rotary :]), dim=-1)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """A pre-norm layer: x + mixer(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        if config.is_attention(index):
            self.self_attn = Attention(config)
        else:
            self.linear_attn = GatedDeltaNet(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.is_attention = config.is_attention(index)

    def forward(self, x: Tensor) -> Tensor:
        mixer = self.self_attn if self.is_attention else self.linear_attn
        x = x + mixer(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)  # type: ignore[no-any-return]


class PocketModel(nn.Module):
    """tokens [B, T] -> logits [B, T, vocab]; embeddings are tied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self._cross_entropy = cross_entropy
        self.reset()

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.model(tokens), self.model.embed_tokens.weight)

    def loss(self, rows: Tensor) -> Tensor:
        """Mean negative log-likelihood (nats) of ``rows`` [B, T + 1], without the first tokens."""
        hidden = self.model(rows[:, :-1])
        return self._cross_entropy(hidden, self.model.embed_tokens.weight, rows[:, 1:])

    def compile_parts(self) -> None:
        """Compile each layer by itself, so that all layers of a kind share one graph."""
        for layer in self.model.layers:
            layer.compile(dynamic=False)
        self._cross_entropy = torch.compile(cross_entropy, dynamic=False)

    def reader(self) -> PocketModel:
        """An uncompiled model that shares the storage, for input shapes that vary between calls."""
        twin = PocketModel(self.config)
        twin.load_state_dict(self.state_dict(), assign=True)
        return twin.requires_grad_(False).eval()

    @torch.no_grad()
    def reset(self) -> None:
        """Set random weights; decays get time scales from a few to a thousand tokens."""
        depth = self.config.num_hidden_layers
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                out = name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight"))
                scale = 1 / math.sqrt(2 * depth) if out else 1.0
                parameter.normal_(0.0, self.config.initializer_range * scale)
            elif name.endswith("conv1d.weight"):
                parameter.uniform_(-0.5, 0.5)
            elif name.endswith("A_log"):
                parameter.uniform_(1.0, 16.0).log_()
            elif name.endswith("dt_bias"):
                step = torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(1e-1)).exp()
                parameter.copy_(step + torch.log(-torch.expm1(-step)))


def _unit(x: Tensor) -> Tensor:
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().sum(-1, keepdim=True) + 1e-6)).type_as(x)


def cross_entropy(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(hidden, head).flatten(0, 1)
    return F.cross_entropy(logits.float(), targets.flatten())
