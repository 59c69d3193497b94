"""The chunked gated delta rule for training: all chunks in one batch, then one short scan.

Yang et al., "Gated Delta Networks" (2024), in the UT form of "Parallelizing Linear Transformers
with the Delta Rule over Sequence Length" (2024). Inside a chunk of 64 tokens the rule is a unit
lower-triangular system; the systems of all chunks and heads are solved in one batch. Only the
states at the chunk starts are computed in sequence (``scan.py``).

Letters: N chunks, B sequences, K key heads, R value heads per key head, C = 64 tokens, D width.
"""

from __future__ import annotations

import torch
from pocket.scan import scan
from torch import Tensor
from torch.nn import functional as F

CHUNK_TOKENS = 64


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Outputs of every token; the initial state is zero.

    q, k [B, T, K, D] with unit rows; v [B, T, K * R, D]; g (log decay, <= 0) and beta [B, T, K * R]
    in fp32. Returns [B, T, K * R, D] in the dtype of ``v``. The value heads of a key head are
    adjacent. T is any length.
    """
    length = v.shape[1]
    pad = -length % CHUNK_TOKENS
    if pad:
        # Zero keys, betas and log decays: the padded tokens leave the state as it is.
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, 0, 0, pad)) for x in (g, beta))
    return _chunks(q * q.shape[-1] ** -0.5, k, v, g, beta)[:, :length]


def _chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    batch, length, key_heads, width = q.shape
    ratio = v.shape[2] // key_heads
    chunks = length // CHUNK_TOKENS
    grouped = (batch, chunks, CHUNK_TOKENS, key_heads, ratio)
    q = q.view(batch, chunks, CHUNK_TOKENS, key_heads, width).permute(1, 0, 3, 2, 4).contiguous()
    k = k.view(batch, chunks, CHUNK_TOKENS, key_heads, width).permute(1, 0, 3, 2, 4).contiguous()
    v = v.view(*grouped, -1).permute(1, 0, 3, 4, 2, 5).contiguous()
    total = g.view(grouped).permute(1, 0, 3, 4, 2).cumsum(-1)  # [N, B, K, R, C]
    beta = beta.view(grouped).permute(1, 0, 3, 4, 2)

    lower = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool, device=q.device).tril()
    # Masked before exp: above the diagonal the exponent is positive and may overflow.
    gap = total.unsqueeze(-1) - total.unsqueeze(-2)
    decay = gap.masked_fill(~lower, float("-inf")).exp()  # [N, B, K, R, C, C]
    keys32 = k.float()
    products = (keys32 @ keys32.mT).unsqueeze(3)  # [N, B, K, 1, C, C]
    system = (products * decay * beta.unsqueeze(-1)).tril(-1)
    solved = unit_lower_inverse(system) * beta.unsqueeze(-2)

    # The value heads of a key head share its keys: one matrix product of their stacked rows.
    stacked = (chunks, batch, key_heads, ratio * CHUNK_TOKENS, CHUNK_TOKENS)
    heads = (chunks, batch * key_heads * ratio, CHUNK_TOKENS)
    from_state = (solved * total.exp().unsqueeze(-2)).to(k.dtype).view(stacked) @ k
    new = solved.to(v.dtype) @ v
    to_state = k.unsqueeze(3) * (total[..., -1:] - total).exp().unsqueeze(-1).to(k.dtype)
    values, states = scan(
        from_state.view(*heads, width),
        new.view(*heads, -1),
        to_state.reshape(*heads, width),
        total[..., -1].exp().reshape(chunks, -1),
    )
    reads = q.unsqueeze(3) * total.exp().unsqueeze(-1).to(q.dtype)
    inside = ((q @ k.mT).unsqueeze(3) * decay).to(q.dtype)
    out = reads.reshape(*heads, width) @ states + inside.view(*heads, CHUNK_TOKENS) @ values
    out = out.view(chunks, batch, key_heads * ratio, CHUNK_TOKENS, -1)
    return out.permute(1, 0, 3, 2, 4).reshape(batch, length, key_heads * ratio, -1)


class _UnitLowerInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, system: Tensor) -> Tensor:
        inverse: Tensor = torch.ops.pocket.unit_lower_inverse(system)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors  # type: ignore[attr-defined]
        result: Tensor = -(inverse.mT @ grad @ inverse.mT).tril(-1)
        return result


def unit_lower_inverse(system: Tensor) -> Tensor:
    """(I + ``system``)^-1 for strictly lower-triangular fp32 matrices [..., C, C]."""
    return _UnitLowerInverse.apply(system)  # type: ignore[no-any-return, no-untyped-call]


@torch.library.custom_op("pocket::unit_lower_inverse", mutates_args=())
def _unit_lower_inverse(system: Tensor) -> Tensor:
    eye = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
    inverse: Tensor = torch.linalg.solve_triangular(
        system, eye.expand_as(system), upper=False, unitriangular=True
    )
    return inverse.contiguous()


@_unit_lower_inverse.register_fake
def _(system: Tensor) -> Tensor:
    return torch.empty_like(system)
