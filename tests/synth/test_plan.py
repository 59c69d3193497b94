"""Sizes and types of the released shapes, known without writing a byte."""

from __future__ import annotations

import pytest

from kinfolk.errors import UnsupportedModelError
from kinfolk.synth.plan import find_shape, plan_synthetic

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "parameters", "size"),
    [
        ("qwen3.5-0.8b", 0.75e9, 0.48),
        ("qwen3.5-2b", 1.88e9, 1.18),
        ("qwen3.5-4b", 4.21e9, 2.51),
        ("qwen3.5-9b", 8.95e9, 5.23),
        ("qwen3.5-27b", 26.90e9, 15.40),
    ],
)
def test_parameters_and_stock_q4_k_m_files_have_the_published_size(name, parameters, size, family):
    plan = plan_synthetic(find_shape(name, [family]), mix="q4_k_m")
    assert plan.parameters == pytest.approx(parameters, rel=0.005)
    assert plan.nbytes / GIB == pytest.approx(size, abs=0.0051)


def test_the_27b_file_in_circulation_is_known_to_a_percent(family):
    plan = plan_synthetic(find_shape("qwen3.5-27b", [family]))
    assert plan.mix == "published"
    assert plan.nbytes / GIB == pytest.approx(15.58, rel=0.01)


def test_the_types_of_the_27b_file_in_circulation(family):
    plan = plan_synthetic(find_shape("qwen3.5-27b", [family]))
    kinds = {tensor.layout.name: tensor.kind for tensor in plan.tensors}

    def of(local: str) -> list[str]:
        return [kind for name, kind in kinds.items() if name.endswith(f".{local}.weight")]

    assert kinds["token_embd.weight"] == "Q4_K"
    assert kinds["output.weight"] == "Q6_K"
    for local in ("attn_q", "attn_k", "attn_output", "attn_gate", "ffn_gate", "ffn_up"):
        assert set(of(local)) == {"Q4_K"}, local
    assert set(of("attn_qkv")) == set(of("ssm_out")) == {"Q5_K"}
    assert set(of("ssm_alpha")) == set(of("ssm_beta")) == {"Q8_0"}
    for local, count in (("attn_v", 16), ("ffn_down", 64)):
        assert len(of(local)) == count
        assert of(local).count("Q6_K") == count // 2
        assert of(local).count("Q4_K") == count // 2


def test_layers_can_be_left_out(family):
    shape = find_shape("qwen3.5-27B", [family])
    plan = plan_synthetic(shape, layers=5)
    assert plan.metadata["qwen35.block_count"] == 5
    assert plan.metadata["qwen35.attention.recurrent_layers"].tolist() == [
        True, True, True, False, True,
    ]  # fmt: skip
    assert {
        t.layout.name.split(".")[1] for t in plan.tensors if t.layout.name[:4] == "blk."
    } == set("01234")


def test_a_short_model_keeps_a_layer_of_each_kind(family):
    """llama.cpp aborts on hybrid models without an attention layer."""
    metadata = plan_synthetic(find_shape("qwen3.5-27b", [family]), layers=2).metadata
    assert metadata["qwen35.attention.recurrent_layers"].tolist() == [True, False]
    assert metadata["qwen35.full_attention_interval"] == 2


def test_the_vocabulary_is_whole(family):
    for shape in family.shapes():
        keys = plan_synthetic(shape, layers=1).metadata
        tokens = keys["tokenizer.ggml.tokens"]
        assert len(tokens) == len(set(tokens)) == len(keys["tokenizer.ggml.token_type"]) == 248320
        assert tokens[248045] == "<|im_start|>"
        assert tokens[keys["tokenizer.ggml.eos_token_id"]] == tokens[248046] == "<|im_end|>"
        assert (tokens[248068], tokens[248069]) == ("<think>", "</think>")


def test_what_is_not_known_is_answered_with_what_is(family, small):
    with pytest.raises(UnsupportedModelError, match=r"'300b'.*qwen3\.5-0\.8b, qwen3\.5-27b"):
        find_shape("300b", [family])
    with pytest.raises(UnsupportedModelError, match=r"'q9'.*published, f32"):
        plan_synthetic(small, mix="q9")
    with pytest.raises(UnsupportedModelError, match="-1 layers"):
        plan_synthetic(small, layers=-1)
