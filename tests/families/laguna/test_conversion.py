"""Our conversion against a file that llama.cpp's own converter wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tokenizers import Regex, pre_tokenizers

from kinfolk.convert.driver import convert
from kinfolk.errors import ConversionError
from kinfolk.gguf.file import GGUFFile
from kinfolk.text.tokenizer import Tokenizer
from kinfolk_laguna.config import read_config
from kinfolk_laguna.family import Laguna

CASE = "laguna"
LOCAL, FULL = "sliding_attention", "full_attention"
SPLITS = (
    r"[^\n]+|[\n]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
NAMES = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_gate.weight": "self_attn.g_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "exp_probs_b.bias": "mlp.experts.e_score_correction_bias",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def on_disk(tensors):
    """Matrices of their own for every expert; the bias is the experts'."""
    found = {}
    for name, array in tensors.items():
        if name in TOP:
            found[TOP[name]] = array
            continue
        _, layer, local = name.split(".", 2)
        block = f"model.layers.{layer}."
        if local.endswith("_exps.weight"):
            part = local.removeprefix("ffn_").removesuffix("_exps.weight")
            for expert, matrix in enumerate(array):
                found[f"{block}mlp.experts.{expert}.{part}_proj.weight"] = matrix.copy()
        else:
            found[block + NAMES[local]] = array
    return found


def in_memory(tensors):
    """Two tensors for all experts of a layer; the bias is the router's."""
    found = {}
    for name, array in on_disk(tensors).items():
        if ".experts." not in name or name.endswith("bias"):
            name = name.replace("experts.e_score", "gate.e_score")
            found[name.replace("shared_expert.", "shared_experts.")] = array
    for name, down in tensors.items():
        if name.endswith("ffn_down_exps.weight"):
            parts = [tensors[name.replace("down", part)] for part in ("gate", "up")]
            experts = f"model.layers.{name.split('.')[1]}.mlp.experts."
            found[f"{experts}gate_up_proj"] = np.concatenate(parts, axis=1)
            found[f"{experts}down_proj"] = down
    return found


def config(**changes):
    from transformers import LagunaConfig

    stated = {
        "architectures": ["LagunaForCausalLM"],
        "vocab_size": 768,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_attention_heads_per_layer": [4, 6, 6, 6, 4, 6],
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "sliding_window": 24,
        "layer_types": [FULL, LOCAL, LOCAL, LOCAL, FULL, LOCAL],
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "moe_routed_scaling_factor": 2.5,
        "bos_token_id": 0,
        "eos_token_id": [0, 2],
        "rope_parameters": {
            FULL: {
                "rope_type": "yarn",
                "rope_theta": 5e5,
                "partial_rotary_factor": 0.5,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
            LOCAL: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        },
    }
    return LagunaConfig(**(stated | changes))


@pytest.fixture
def make_source(checkpoint_of_case):
    def make(back=on_disk, **changes):
        pre = [pre_tokenizers.Split(Regex(split), "isolated") for split in SPLITS]
        return checkpoint_of_case(CASE, config(**changes), back, pre, {})

    return make


@pytest.fixture
def run(tmp_path):
    """``run(source)``: the converted file."""

    def conversion(source, outtype="bf16"):
        path = tmp_path / "model.gguf"
        convert(source, path, outtype=outtype, families=[Laguna()])
        return path

    return conversion


@pytest.fixture
def meta(run):
    """``meta(source)``: the metadata of the converted file."""

    def read(source):
        with GGUFFile.open(run(source)) as file:
            return file.metadata

    return read


@pytest.mark.parametrize("back", [on_disk, in_memory])
def test_the_way_back_leads_to_the_model_the_reference_was_made_from(make_source, back, reference):
    """Otherwise the comparison below would prove nothing."""
    from transformers import LagunaForCausalLM

    tokens, expected = reference(CASE)
    model = LagunaForCausalLM.from_pretrained(make_source(back), dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(torch.tensor([tokens])).logits[0]
    assert float((found - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


@pytest.mark.parametrize("back", [on_disk, in_memory])
def test_the_file_is_the_reference(make_source, run, same_file, back):
    """It also states the values that readers of the reference have to guess."""
    guessed = {"laguna.attention.sliding_window_pattern", "tokenizer.ggml.add_bos_token"}
    same_file(run(make_source(back)), CASE, added=guessed)


def test_a_model_without_windows_does_not_mention_any(make_source, meta):
    found = meta(make_source(layer_types=[FULL] * 6))
    assert not [key for key in found if key.endswith("_swa") or "sliding" in key]
    assert read_config(found).windowed == (False,) * 6


def test_the_second_end_of_text_ends_turns_and_is_hidden(make_source, run):
    source = make_source()
    path = source / "tokenizer.json"
    stored = json.loads(path.read_text())
    for added in stored["added_tokens"]:
        added["special"] = added["id"] != 2
    path.write_text(json.dumps(stored))
    with GGUFFile.open(run(source)) as file:
        assert file.metadata.integer("tokenizer.ggml.eot_token_id") == 2
        tokenizer = Tokenizer.from_metadata(file.metadata, [Laguna()], chat=Laguna().chat(None))
    assert {0, 2} <= tokenizer.eog
    assert tokenizer.is_hidden(2)
    assert tokenizer.encode("a</assistant>")[-1] == 2


@pytest.mark.parametrize(
    ("stated", "keys", "magnitude"),
    [
        (None, {}, 1.2079441542),
        (1.2079441541679836, {"yarn_attn_factor": 1.2079441542}, 1.2079441542),
        (1.0, {"yarn_attn_factor": 1.0, "attn_factor": 1 / 1.2079441542}, 1.0),
        (1.5, {"yarn_attn_factor": 1.5, "attn_factor": 1.5 / 1.2079441542}, 1.5),
    ],
)
def test_a_magnitude_means_the_same_to_every_reader(make_source, meta, stated, keys, magnitude):
    """Readers that do not know the key of the factor apply 0.1 ln 8 + 1 = 1.2079."""
    source = make_source()
    path = source / "config.json"
    values = json.loads(path.read_text())
    values["rope_parameters"][FULL]["attention_factor"] = stated
    path.write_text(json.dumps(values))
    found = meta(source)
    names = {key for key in found if key.endswith("attn_factor")}
    assert names == {f"laguna.rope.scaling.{name}" for name in keys}
    for name, number in keys.items():
        assert found.number(f"laguna.rope.scaling.{name}") == pytest.approx(number, rel=1e-6)
    yarn = read_config(found).rope.yarn
    used = yarn.usual_magnitude if yarn.magnitude is None else yarn.magnitude
    assert used == pytest.approx(magnitude, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gating": "per-layer"}, r"'gating' is 'per-layer', expected one of True, 'per-head'"),
        ({"gating": False}, "gating"),
        ({"gating_types": ["per-head"] * 5}, "gating_types.*has 5 entries"),
        ({"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping"),
        ({"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input"),
        ({"mlp_layer_types": ["sparse", "dense", *["sparse"] * 4]}, "mlp_layer_types"),
        ({"layer_types": [FULL] * 5}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 6}, "layer_types"),
        ({"num_attention_heads_per_layer": [4] * 5}, "num_attention_heads_per_layer"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, LOCAL),
    ],
)
def test_what_the_file_could_not_say_is_refused_by_key(make_source, run, changes, message):
    source = make_source()
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConversionError, match=message):
        run(source)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope_type", "llama3", "rope_type"),
        ("mscale", -0.7, "mscale"),
        ("truncate", False, "truncate"),
        ("factor", None, "factor.*missing"),
    ],
)
def test_context_extension_of_another_kind_is_refused(make_source, run, key, value, message):
    source = make_source()
    path = source / "config.json"
    values = json.loads(path.read_text())
    values["rope_parameters"][FULL][key] = value
    path.write_text(json.dumps(values))
    with pytest.raises(ConversionError, match=message):
        run(source)


def test_gates_that_differ_from_what_the_configuration_says_are_refused(make_source, run):
    with pytest.raises(ConversionError, match=r"g_proj\.weight' has shape \[4, 64\].*\[128, 64\]"):
        run(make_source(gating="per-element"))


def test_a_quantised_file_loads_and_keeps_what_must_stay_exact(make_source, run):
    with GGUFFile.open(run(make_source(), "q4_0")) as file:
        kinds = {name: info.type_name for name, info in file.inventory.items()}
    assert kinds["blk.1.ffn_up_exps.weight"] == "Q4_0"
    assert kinds["blk.1.ffn_gate_inp.weight"] == kinds["blk.1.exp_probs_b.bias"] == "F32"
