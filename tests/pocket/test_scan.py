"""The kernels of the scan equal its loops, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from pocket import scan


def inputs(chunks: int, rows: int, width: int, columns: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(chunks)
    shapes = ((64, width), (64, columns), (64, width), (64, columns), (width, columns))
    found = [torch.randn(chunks, rows, *s, generator=generator) * 0.1 for s in shapes]
    return [*found, torch.rand(chunks, rows, generator=generator)]


@pytest.mark.interpreter
@pytest.mark.parametrize("shape", [(1, 1, 16, 16), (3, 2, 32, 64), (2, 1, 64, 128)])
def test_interpreted_kernels_equal_the_loops(shape: tuple[int, int, int, int]) -> None:
    from pocket import scan_triton

    w, u, k, grad_values, grad_states, decay = inputs(*shape)
    got = (
        *scan_triton.forward(w, u, k, decay),
        *scan_triton.backward(grad_values, grad_states, w, k, decay),
    )
    want = (
        *scan.scan_loop(w, u, k, decay),
        *scan.scan_loop_backward(grad_values, grad_states, w, k, decay),
    )
    for kernel, loop in zip(got, want, strict=True):
        torch.testing.assert_close(kernel, loop, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_kernels_equal_the_loops_on_the_device() -> None:
    assert scan.check_kernels(torch.device("cuda")) <= 2e-2


@pytest.mark.gpu
def test_the_rule_in_bf16_follows_fp32_on_the_device() -> None:
    from pocket.delta import gated_delta_rule

    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, 700, n, 128, generator=generator) for n in (2, 2, 4))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g = -torch.rand(2, 700, 4, generator=generator) * 0.1
    beta = torch.rand(2, 700, 4, generator=generator)
    small = [x.cuda().bfloat16().requires_grad_() for x in (q, k, v)]
    exact = [x.detach().float().requires_grad_() for x in small]
    weight = torch.randn(2, 700, 4, 128, generator=generator).cuda()
    for inputs in (small, exact):
        (gated_delta_rule(*inputs, g.cuda(), beta.cuda()).float() * weight).sum().backward()
    got = gated_delta_rule(*small, g.cuda(), beta.cuda()).float()
    want = gated_delta_rule(*exact, g.cuda(), beta.cuda())
    assert (got - want).norm() <= 1e-2 * want.norm()
    for fast, slow in zip(small, exact, strict=True):
        assert fast.grad is not None
        assert slow.grad is not None
        assert (fast.grad.float() - slow.grad).norm() <= 2e-2 * slow.grad.norm()
