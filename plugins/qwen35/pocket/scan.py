"""The sequential part of the chunked delta rule: the state at the start of every chunk.

    V'_n = U_n - W_n S_n,    S_{n+1} = e_n S_n + K_n^T V'_n,    S_0 = 0

W, K [N, M, C, Dk], U [N, M, C, Dv], e [N, M]; M = sequences x value heads. The state is
fp32; matrix products read it rounded to the inputs' dtype. CUDA tensors use the kernels of
``scan_triton.py``; the loops here are their reference.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scan(w: Tensor, u: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Corrected values [N, M, C, Dv] and states [N, M, Dk, Dv] at the chunk starts."""
    return torch.ops.pocket.delta_scan(w, u, k, decay)  # type: ignore[no-any-return]


def _product32(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` with an fp32 result, for inputs of any dtype."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


@torch.library.custom_op("pocket::delta_scan", mutates_args=())
def _delta_scan(w: Tensor, u: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    if u.is_cuda:
        from pocket import scan_triton

        return scan_triton.forward(w, u, k, decay)
    return scan_loop(w, u, k, decay)


def scan_loop(w: Tensor, u: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Reference of the scan: a loop over the chunks."""
    chunks, rows, _, width = w.shape
    values = torch.empty_like(u)
    states = u.new_empty(chunks, rows, width, u.shape[-1])
    state = torch.zeros(rows, width, u.shape[-1], dtype=torch.float32, device=u.device)
    for n in range(chunks):
        states[n] = state
        torch.baddbmm(u[n], w[n], states[n], alpha=-1, out=values[n])
        state = torch.addcmul(_product32(k[n].mT, values[n]), state, decay[n, :, None, None])
    return values, states


@_delta_scan.register_fake
def _(w: Tensor, u: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    chunks, rows, _, width = w.shape
    return torch.empty_like(u), u.new_empty(chunks, rows, width, u.shape[-1])


@torch.library.custom_op("pocket::delta_scan_backward", mutates_args=())
def _delta_scan_backward(
    grad_values: Tensor, grad_states: Tensor, w: Tensor, k: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    if w.is_cuda:
        from pocket import scan_triton

        return scan_triton.backward(grad_values, grad_states, w, k, decay)
    return scan_loop_backward(grad_values, grad_states, w, k, decay)


def scan_loop_backward(
    grad_values: Tensor, grad_states: Tensor, w: Tensor, k: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of U (equal to those of V') and of the state after each chunk."""
    chunks, rows, _, width = w.shape
    total = torch.empty_like(grad_values)
    after = torch.empty_like(grad_states)
    grad = torch.zeros(
        rows, width, grad_values.shape[-1], dtype=torch.float32, device=grad_values.device
    )
    for n in reversed(range(chunks)):
        after[n] = grad
        torch.baddbmm(grad_values[n], k[n], after[n], out=total[n])
        grad = torch.addcmul(grad_states[n], grad, decay[n, :, None, None])
        grad -= _product32(w[n].mT, total[n])
    return total, after


@_delta_scan_backward.register_fake
def _(
    grad_values: Tensor, grad_states: Tensor, w: Tensor, k: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(grad_values), torch.empty_like(grad_states)


def check_kernels(device: torch.device) -> float:
    """Largest relative error of the kernels against the fp32 loops, over a few shapes.

    The kernels' bf16 inputs give about 5e-3; a miscompiled kernel gives far more.
    """
    from pocket import scan_triton

    worst = 0.0
    generator = torch.Generator(device).manual_seed(0)
    for chunks, rows in ((1, 1), (7, 5), (32, 64)):
        shapes = ((64, 128), (64, 128), (64, 128), (64, 128), (128, 128))
        w, u, k, grad_values, grad_states = (
            torch.randn(chunks, rows, *shape, device=device, generator=generator) * 0.1
            for shape in shapes
        )
        decay = torch.rand(chunks, rows, device=device, generator=generator)
        w, u, k, grad_values, grad_states = (
            x.bfloat16() for x in (w, u, k, grad_values, grad_states)
        )
        got = (
            *scan_triton.forward(w, u, k, decay),
            *scan_triton.backward(grad_values, grad_states, w, k, decay),
        )
        w, u, k, grad_values, grad_states = (x.float() for x in (w, u, k, grad_values, grad_states))
        want = (
            *scan_loop(w, u, k, decay),
            *scan_loop_backward(grad_values, grad_states, w, k, decay),
        )
        for a, b in zip(got, want, strict=True):
            worst = max(worst, float((a.float() - b).norm() / b.norm().clamp_min(1e-6)))
    return worst


def _setup(
    ctx: torch.autograd.function.FunctionCtx,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    output: tuple[Tensor, Tensor],
) -> None:
    w, _, k, decay = inputs
    values, states = output
    ctx.save_for_backward(w, k, decay, values, states)


def _backward(
    ctx: torch.autograd.function.FunctionCtx, grad_values: Tensor, grad_states: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    w, k, decay, values, states = ctx.saved_tensors  # type: ignore[attr-defined]
    total, after = torch.ops.pocket.delta_scan_backward(
        grad_values.contiguous(), grad_states.contiguous(), w, k, decay
    )
    grad_w = -(total @ states.mT)
    grad_k = values @ after.mT
    grad_decay = (after.float() * states.float()).sum((-1, -2))
    return grad_w, total, grad_k, grad_decay


torch.library.register_autograd("pocket::delta_scan", _backward, setup_context=_setup)
