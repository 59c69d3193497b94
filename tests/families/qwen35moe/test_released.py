"""Synthetic files of the released sizes, and the model cards of those models."""

from __future__ import annotations

import pytest

from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk_qwen35moe.family import Qwen35Moe

GIB = 2**30


def plan(name, **options):
    return plan_synthetic(find_shape(name, [Qwen35Moe()]), **options)


@pytest.mark.parametrize(
    ("name", "parameters", "size"),
    [
        ("qwen3.5-35b-a3b", 34.66e9, 19.70),
        ("qwen3.5-122b-a10b", 122.1e9, 69.1),
        ("qwen3.5-397b-a17b", 396.4e9, 224),
    ],
)
def test_parameters_and_stock_files_have_the_published_size(name, parameters, size):
    found = plan(name, mix="q4_k_m")
    assert found.parameters == pytest.approx(parameters, rel=0.001)
    assert found.nbytes / GIB == pytest.approx(size, rel=0.001)


def test_the_35b_file_in_circulation_is_known_to_a_percent():
    found = plan("qwen3.5-35b-a3b")
    assert found.mix == "published"
    assert found.nbytes / GIB == pytest.approx(19.97, rel=0.01)


def test_the_types_of_the_35b_file_in_circulation():
    kinds = {tensor.layout.name: tensor.kind for tensor in plan("qwen3.5-35b-a3b").tensors}

    def of(local):
        return [kind for name, kind in kinds.items() if name.endswith(f".{local}")]

    assert (kinds["token_embd.weight"], kinds["output.weight"]) == ("Q4_K", "Q6_K")
    for local in ("attn_qkv", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"):
        assert set(of(f"{local}.weight")) == {"Q8_0"}, local
    for local in ("ffn_gate_exps", "ffn_up_exps", "attn_q", "attn_k", "attn_gate"):
        assert set(of(f"{local}.weight")) == {"Q4_K"}, local
    down = of("ffn_down_exps.weight")
    assert (down.count("Q6_K"), down.count("Q4_K")) == (20, 20)
    for local in ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_a", "ssm_dt.bias"):
        assert set(of(local)) == {"F32"}, local


def test_a_short_model_keeps_a_layer_of_each_kind():
    keys = plan("qwen3.5-35b-a3b", layers=2).metadata
    assert keys["qwen35moe.attention.recurrent_layers"].tolist() == [True, False]
    assert (keys["qwen35moe.expert_count"], keys["qwen35moe.expert_used_count"]) == (256, 8)


def test_a_file_may_have_the_block_for_multi_token_prediction():
    with_block, without = plan("qwen3.5-35b-a3b-mtp"), plan("qwen3.5-35b-a3b")
    keys = with_block.metadata
    assert keys["qwen35moe.block_count"] == 41
    assert keys["qwen35moe.nextn_predict_layers"] == 1
    assert keys["qwen35moe.attention.recurrent_layers"].tolist()[40:] == [False]
    names = {t.layout.name: t.layout.shape for t in with_block.tensors}
    added = {n: shape for n, shape in names.items() if n.startswith("blk.40.")}
    assert names.keys() - added.keys() == {t.layout.name for t in without.tensors}
    assert added["blk.40.nextn.eh_proj.weight"] == (2048, 4096)
    assert added["blk.40.ffn_down_exps.weight"] == (256, 2048, 512)


def test_the_vocabulary_is_whole():
    keys = plan("qwen3.5-397b-a17b", layers=1).metadata
    tokens = keys["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == 248320
    assert tokens[248045] == "<|im_start|>"
    assert tokens[keys["tokenizer.ggml.eos_token_id"]] == tokens[248046] == "<|im_end|>"
    assert (tokens[248058], tokens[248059]) == ("<tool_call>", "</tool_call>")
    assert (tokens[248068], tokens[248069]) == ("<think>", "</think>")


def test_every_released_size_has_a_card():
    family = Qwen35Moe()
    cards = {card.name: card for card in family.model_cards()}
    sizes = {shape.name.removesuffix("-mtp") for shape in family.shapes()}
    assert sizes <= set(cards)
    for card in cards.values():
        assert card.sampling.top_k == 20
        assert card.thinking_budget < card.max_tokens
    # Experts repeat themselves more than dense models of the family do.
    assert cards["qwen3.5-35b-a3b"].sampling.presence_penalty == 1.5
