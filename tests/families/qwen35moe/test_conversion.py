"""Our conversion against a file that llama.cpp's own converter wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, pre_tokenizers

from kinfolk.convert.driver import convert
from kinfolk.errors import ConversionError
from kinfolk.gguf.file import GGUFFile
from kinfolk_qwen35moe.family import Qwen35Moe

CASE = "qwen35moe"
KEY_HEADS, VALUE_HEADS, VALUE_DIM = 2, 6, 32
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
NAMES = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}


def grouped(array):
    """Tiled value heads along the first axis -> grouped by key head."""
    heads = array.reshape(VALUE_HEADS // KEY_HEADS, KEY_HEADS, -1, *array.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(array.shape)


def undone(local, array):
    """The tensor of the checkpoint that becomes this tensor of the file."""
    if local in ("attn_qkv.weight", "ssm_conv1d.weight"):
        keys = len(array) - VALUE_HEADS * VALUE_DIM
        array = np.concatenate((array[:keys], grouped(array[keys:])))
        return array[:, None] if local == "ssm_conv1d.weight" else array
    if local in ("attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias"):
        return grouped(array)
    if local == "ssm_a":
        return np.log(-grouped(array))
    if local == "ssm_out.weight":
        return np.ascontiguousarray(grouped(np.ascontiguousarray(array.T)).T)
    if local.endswith("norm.weight") and local != "ssm_norm.weight":
        return array - 1
    return array


def split_experts(tensors):
    """Matrices of their own for every expert, as on disk."""
    found = {}
    for name, array in tensors.items():
        if name in TOP:
            found[TOP[name]] = undone(name, array)
            continue
        _, layer, local = name.split(".", 2)
        if local.endswith("_exps.weight"):
            part = local.removeprefix("ffn_").removesuffix("_exps.weight")
            for expert, matrix in enumerate(array):
                stored = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                found[stored] = matrix.copy()
        else:
            found[f"model.layers.{layer}.{NAMES[local]}"] = undone(local, array)
    return found


def fused_experts(tensors):
    """Two tensors for all experts of a layer, as in memory."""
    found = {n: array for n, array in split_experts(tensors).items() if ".experts." not in n}
    for name, down in tensors.items():
        if not name.endswith("ffn_down_exps.weight"):
            continue
        parts = [tensors[name.replace("down", part)] for part in ("gate", "up")]
        experts = f"model.layers.{name.split('.')[1]}.mlp.experts."
        found[f"{experts}gate_up_proj"] = np.concatenate(parts, axis=1)
        found[f"{experts}down_proj"] = down
    return found


def config():
    from transformers import Qwen3_5MoeTextConfig

    kinds = ["linear_attention"] * 5
    kinds[3] = "full_attention"
    return Qwen3_5MoeTextConfig(
        architectures=["Qwen3_5MoeForCausalLM"],
        vocab_size=768,
        hidden_size=64,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=KEY_HEADS,
        linear_num_value_heads=VALUE_HEADS,
        linear_key_head_dim=32,
        linear_value_head_dim=VALUE_DIM,
        num_experts=12,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
        max_position_embeddings=4096,
        layer_types=kinds,
        full_attention_interval=4,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
        },
    )


@pytest.fixture(params=[split_experts, fused_experts], ids=["split", "fused"])
def source(request, checkpoint_of_case):
    pre = [pre_tokenizers.Split(Regex(SPLIT), "isolated")]
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False}
    return checkpoint_of_case(CASE, config(), request.param, pre, settings)


def test_the_way_back_leads_to_the_model_the_reference_was_made_from(source, reference):
    """Otherwise the comparison below would prove nothing."""
    from transformers import Qwen3_5MoeForCausalLM

    tokens, expected = reference(CASE)
    model = Qwen3_5MoeForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(torch.tensor([tokens])).logits[0]
    assert float((found - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


def test_the_file_is_the_reference(source, same_file, tmp_path):
    path = tmp_path / "model.gguf"
    convert(source, path, outtype="bf16", families=[Qwen35Moe()])
    same_file(path, CASE, close=("ssm_a",))


@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp."])
def test_a_prediction_layer_is_converted_with_its_experts(source, prefix, tmp_path):
    stored = load_file(source / "model.safetensors")
    layer = {
        name.replace("model.layers.3.", f"{prefix}layers.0."): tensor * 2
        for name, tensor in stored.items()
        if name.startswith("model.layers.3.")
    }
    head = {"fc.weight": torch.ones(64, 128)} | {
        f"{name}.weight": torch.zeros(64)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    }
    head = {f"{prefix}{name}": tensor for name, tensor in head.items()}
    save_file(stored | layer | head, source / "model.safetensors", metadata={"format": "pt"})
    path = tmp_path / "model.gguf"
    convert(source, path, outtype="bf16", families=[Qwen35Moe()])
    with GGUFFile.open(path) as file:
        meta = file.metadata
        assert meta.integer("qwen35moe.block_count") == 6
        assert meta.integer("qwen35moe.nextn_predict_layers") == 1
        assert file.inventory["blk.5.ffn_up_exps.weight"].shape == (12, 32, 64)
        assert file.inventory["blk.5.nextn.eh_proj.weight"].shape == (64, 128)
        loaded = Qwen35Moe().read_config(meta)
        assert (loaded.layers, loaded.draft_layers) == (5, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 13}, "num_experts_per_tok"),
        ({"num_experts": 11}, r"has shape \[12, "),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"moe_intermediate_size": 48}, r"mlp\.experts\.\S+ has shape"),
    ],
)
def test_a_checkpoint_of_other_sizes_is_refused(source, tmp_path, change, message):
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConversionError, match=message):
        convert(source, tmp_path / "model.gguf", outtype="bf16", families=[Qwen35Moe()])
    assert list(tmp_path.glob("*.gguf*")) == []


def test_an_expert_that_is_missing_is_named(checkpoint_of_case, tmp_path):
    pre = [pre_tokenizers.Split(Regex(SPLIT), "isolated")]
    source = checkpoint_of_case(CASE, config(), split_experts, pre, {})
    stored = load_file(source / "model.safetensors")
    del stored["model.layers.2.mlp.experts.7.up_proj.weight"]
    save_file(stored, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConversionError, match=r"layers\.2\.mlp\.experts\.7\.up_proj.* is missing"):
        convert(source, tmp_path / "model.gguf", outtype="bf16", families=[Qwen35Moe()])


def test_numbers_that_are_not_finite_are_blamed_on_their_expert(checkpoint_of_case, tmp_path):
    pre = [pre_tokenizers.Split(Regex(SPLIT), "isolated")]
    source = checkpoint_of_case(CASE, config(), split_experts, pre, {})
    stored = load_file(source / "model.safetensors")
    stored["model.layers.2.mlp.experts.7.up_proj.weight"][3, 3] = torch.inf
    save_file(stored, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConversionError, match=r"layers\.2\.mlp\.experts\.7\..*not finite"):
        convert(source, tmp_path / "model.gguf", outtype="bf16", families=[Qwen35Moe()])
