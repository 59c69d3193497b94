"""Synthetic files of the released sizes, and the model cards of those models."""

from __future__ import annotations

import pytest

from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk_laguna.family import Laguna

GIB = 2**30


def plan(name, **options):
    return plan_synthetic(find_shape(name, [Laguna()]), **options)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("laguna-xs.2", 33.4e9),
        ("laguna-xs-2.1", 33.4e9),
        ("laguna-s-2.1", 118e9),
        ("laguna-m.1", 225e9),
    ],
)
def test_parameters_are_as_many_as_published(name, parameters):
    assert plan(name).parameters == pytest.approx(parameters, rel=0.005)


def test_the_xs_file_in_circulation_is_known_to_a_percent():
    found = plan("laguna-xs.2")
    assert found.mix == "q4_k_m"
    assert found.nbytes / GIB == pytest.approx(18.88, rel=0.01)
    assert len(found.tensors) == 678
    assert found.types["F32"] == 239


def test_the_types_of_the_xs_file_in_circulation():
    kinds = {tensor.layout.name: tensor.kind for tensor in plan("laguna-xs.2").tensors}
    assert (kinds["token_embd.weight"], kinds["output.weight"]) == ("Q4_K", "Q6_K")
    assert kinds["blk.0.ffn_down.weight"] == "Q6_K"
    for local, layers in (("attn_v", 40), ("ffn_down_exps", 39), ("ffn_down_shexp", 39)):
        found = [kind for name, kind in kinds.items() if name.endswith(f".{local}.weight")]
        assert len(found) == layers
        assert 0.4 < found.count("Q6_K") / layers < 0.6
        assert set(found) == {"Q4_K", "Q6_K"}
    for local in ("ffn_gate_inp.weight", "exp_probs_b.bias", "attn_q_norm.weight"):
        assert kinds[f"blk.7.{local}"] == "F32"


def test_context_extension_is_that_of_each_release():
    found = {}
    for shape in Laguna().shapes():
        keys = plan_synthetic(shape, layers=1).metadata
        names = ("factor", "original_context_length", "yarn_beta_fast")
        found[shape.name] = tuple(keys[f"laguna.rope.scaling.{name}"] for name in names)
    assert found == {
        "laguna-xs.2": (32, 4096, 64),
        "laguna-xs-2.1": (32, 8192, 64),
        "laguna-s-2.1": (128, 8192, 32),
        "laguna-m.1": (64, 4096, 32),
    }


def test_a_short_model_keeps_a_layer_of_each_kind():
    shape = find_shape("laguna-xs.2", [Laguna()])
    tensors = {tensor.layout.name for tensor in plan_synthetic(shape, layers=2).tensors}
    assert {"blk.0.ffn_up.weight", "blk.1.ffn_up_exps.weight"} <= tensors
    assert plan("laguna-xs.2", layers=2).metadata["laguna.attention.head_count"].tolist() == [
        48,
        64,
    ]
    assert plan("laguna-m.1", layers=2).metadata["laguna.leading_dense_block_count"] == 2


def test_the_vocabulary_has_its_special_tokens_at_their_ids():
    keys = plan("laguna-s-2.1", layers=1).metadata
    tokens = keys["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == 100352
    assert tokens[2] == "〈|EOS|〉"
    assert keys["tokenizer.ggml.bos_token_id"] == keys["tokenizer.ggml.eos_token_id"] == 2
    assert (tokens[18], tokens[19], tokens[24]) == ("<think>", "</think>", "</assistant>")
    assert (tokens[25], tokens[26]) == ("<tool_call>", "</tool_call>")


def test_every_released_size_has_a_card():
    family = Laguna()
    assert {shape.name for shape in family.shapes()} == {c.name for c in family.model_cards()}
    assert {card.sampling.temperature for card in family.model_cards()} == {0.6}
