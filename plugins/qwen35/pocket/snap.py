"""Rounds weights to the Q4_K grid during training, so that quantisation hardly changes the loss.

Q4_K: super-blocks of 256 columns, eight blocks of 32; a weight is ``d * s * q - dmin * m`` with
q in 0..15, s and m in 0..63 for each block, d and dmin in f16 for each super-block. The Q4_K_M mix
of llama.cpp stores some matrices as Q6_K, whose error is far smaller; these are not rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from pocket.config import ModelConfig
from torch import Tensor

SUPER = 256
BLOCK = 32


def more_bits(index: int, count: int) -> bool:
    """Whether llama.cpp's Q4_K_M mix stores this tensor of layer ``index`` as Q6_K."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def in_q4_k(name: str, config: ModelConfig) -> bool:
    """Whether the Q4_K_M mix stores this matrix as Q4_K."""
    found = re.fullmatch(r"model\.layers\.(\d+)\.\w+\.(\w+)\.weight", name)
    if found is None or found[2] in ("in_proj_a", "in_proj_b"):
        return False
    if found[2] in ("in_proj_qkv", "v_proj", "down_proj"):
        return not more_bits(int(found[1]), config.num_hidden_layers)
    return True


def snap(
    name: str, weight: Tensor, config: ModelConfig, grid: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Round an fp32 matrix [rows, columns] to weights that the file can hold.

    ``grid`` is :func:`q4_k` or a compiled version of it.
    """
    grid = grid or q4_k
    if not in_q4_k(name, config):
        return weight
    if not name.endswith("linear_attn.out_proj.weight"):
        return grid(weight)
    # The file orders value heads by their index in the group first, so blocks have other columns.
    rows, key_heads, width = len(weight), config.linear_num_key_heads, config.linear_value_head_dim
    tiled = weight.view(rows, key_heads, -1, width).transpose(1, 2).reshape(weight.shape)
    grouped = grid(tiled).view(rows, -1, key_heads, width).transpose(1, 2)
    return grouped.reshape(weight.shape)


def q4_k(weight: Tensor) -> Tensor:
    """Round fp32 [rows, columns] to Q4_K values; ``columns`` is a multiple of 256."""
    blocks = weight.reshape(-1, SUPER // BLOCK, BLOCK)
    low = blocks.amin(-1).clamp_max(0)
    scale = (blocks.amax(-1) - low) / 15
    d = _f16(scale.amax(-1, keepdim=True) / 63)
    d_min = _f16((-low).amax(-1, keepdim=True) / 63)
    step = (d * _divide(scale, d).round().clamp(0, 63)).unsqueeze(-1)
    offset = (d_min * _divide(-low, d_min).round().clamp(0, 63)).unsqueeze(-1)
    level = _divide(blocks + offset, step).round().clamp(0, 15)
    return (step * level - offset).reshape(weight.shape)


def _f16(x: Tensor) -> Tensor:
    return x.to(torch.float16).float()


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """``a / b``, zero where ``b`` is zero."""
    return torch.where(b != 0, a / torch.where(b != 0, b, torch.ones_like(b)), torch.zeros_like(a))
