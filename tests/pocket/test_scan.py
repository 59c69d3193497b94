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
def test_the_rule_on_the_device_follows_fp32() -> None:
    from pocket.config import ModelConfig
    from pocket.model import PocketModel

    torch.manual_seed(0)
    exact = PocketModel(ModelConfig(vocab_size=256, num_hidden_layers=4)).cuda()
    fast = PocketModel(exact.config).cuda()
    fast.load_state_dict(exact.state_dict())
    for parameter in fast.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.bfloat16()
    tokens = torch.randint(0, 256, (2, 700), device="cuda")
    with torch.no_grad():
        want, got = exact(tokens), fast(tokens).float()
    assert (got - want).norm() <= 2e-2 * want.norm()
