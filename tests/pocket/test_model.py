"""The training model is transformers' model: same names, same numbers."""

from __future__ import annotations

import pytest
import torch
from pocket.config import ModelConfig
from pocket.delta import gated_delta_rule
from pocket.model import PocketModel

SHAPES = {
    "one value head per key head": {"linear_num_key_heads": 2, "linear_num_value_heads": 2},
    "two value heads per key head": {"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "three value heads, narrow keys": {
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 3,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 32,
    },
    "attention everywhere": {"full_attention_interval": 1},
}


def tiny(**changes: int) -> ModelConfig:
    base: dict[str, int] = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    }
    return ModelConfig(**{**base, **changes}, mrope_section=(2, 1, 1))  # type: ignore[arg-type]


def randomised(config: ModelConfig) -> PocketModel:
    torch.manual_seed(1)
    model = PocketModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_logits_equal_transformers(name: str, length: int) -> None:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = tiny(**SHAPES[name])
    ours = randomised(config)
    theirs = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config.to_hf())).eval()
    missing = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert missing.missing_keys == ["lm_head.weight"]
    assert missing.unexpected_keys == []
    theirs.tie_weights()
    tokens = torch.randint(0, 96, (2, length), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        expected = theirs(tokens).logits.float()
        got = ours(tokens)
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_gradients_equal_those_of_the_token_by_token_rule() -> None:
    torch.manual_seed(3)
    inputs = [torch.randn(2, 130, 2, 16), torch.randn(2, 130, 2, 16), torch.randn(2, 130, 4, 8)]
    inputs[0], inputs[1] = (torch.nn.functional.normalize(x, dim=-1) for x in inputs[:2])
    inputs += [-torch.rand(2, 130, 4) * 3, torch.rand(2, 130, 4)]
    weight = torch.randn(2, 130, 4, 8)
    grads = []
    for rule in (gated_delta_rule, token_by_token):
        leaves = [x.double().requires_grad_() for x in inputs]
        if rule is gated_delta_rule:
            leaves = [x.clone().requires_grad_() for x in inputs]
        (rule(*leaves) * weight).sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for chunked, plain in zip(*grads, strict=True):
        assert chunked is not None
        assert plain is not None
        assert (chunked - plain).norm() <= 1e-5 * plain.norm()


def token_by_token(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    share = v.shape[2] // k.shape[2]
    q = q.repeat_interleave(share, 2) * q.shape[-1] ** -0.5
    k = k.repeat_interleave(share, 2)
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    outputs = []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        seen = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        change = beta[:, t, :, None] * (v[:, t] - seen)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], change)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, dim=1)


def test_strong_decay_and_repeated_keys_stay_finite() -> None:
    key = torch.nn.functional.normalize(torch.ones(1, 192, 1, 16), dim=-1)
    value = torch.randn(1, 192, 2, 16)
    decay = torch.zeros(1, 192, 2)
    decay[:, 5::7] = -1e4
    leaves = [x.clone().requires_grad_() for x in (key, key, value, decay, torch.ones(1, 192, 2))]
    out = gated_delta_rule(*leaves)
    out.square().sum().backward()
    assert out.isfinite().all()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)
