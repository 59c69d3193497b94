"""Tiny checkpoints as transformers writes them, and the inverse of a conversion."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kinfolk.convert.driver import Converted, convert
from kinfolk.gguf.file import GGUFFile
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk_qwen35.family import Qwen35

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="session")
def hybrid_config() -> Callable[..., dict[str, Any]]:
    """The transformers configuration of a tiny hybrid decoder; keywords change it."""

    def make(**changes: Any) -> dict[str, Any]:
        config = {
            "vocab_size": 320,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.25,
                "mrope_section": [2, 1, 1],
            },
        }
        return config | changes

    return make


@pytest.fixture(scope="session")
def random_model(hybrid_config) -> Callable[..., Any]:
    """``random_model(**changes)``: a transformers model none of whose weights is trivial.

    Norms are multiples of 2**-8, so that adding one and taking it away changes no bit.
    """

    def make(**changes: Any) -> Any:
        from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

        torch.manual_seed(7)
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**hybrid_config(**changes))).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.copy_(torch.randint(-64, 64, weight.shape) / 256)
                    if "linear_attn" in name:
                        weight.add_(1)
                elif name.endswith("A_log"):
                    weight.uniform_(-2, 1)
                elif name.endswith("dt_bias"):
                    weight.normal_()
                else:
                    weight.normal_(std=weight.shape[-1] ** -0.5)
        return model

    return make


@pytest.fixture
def checkpoint(tmp_path, random_model, write_tokenizer) -> Callable[..., Path]:
    """``checkpoint(**changes)``: a saved random model with a tokenizer."""

    def save(**changes: Any) -> Path:
        directory = tmp_path / "Tiny-Model"
        model = random_model(**changes)
        model.save_pretrained(directory)
        write_tokenizer(directory)
        return directory

    return save


@pytest.fixture
def edit_tensors() -> Callable[[Path, Callable[[dict[str, torch.Tensor]], None]], None]:
    """``edit_tensors(directory, change)``: change the stored tensors in place."""

    def edit(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
        path = directory / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return edit


@pytest.fixture
def edit_json() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))

    return edit


@pytest.fixture(scope="session")
def write_tokenizer() -> Callable[..., None]:
    """``write_tokenizer(directory)``: 256 bytes, some merges, five added tokens; 311 ids."""

    def write(directory: Path) -> None:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
        from tokenizers import pre_tokenizers as pre

        letters = sorted(pre.ByteLevel.alphabet())
        merges = [(a, b) for a in "aeiou" for b in "lmnrst"] + [("Ġ", c) for c in "abcdefghijklmno"]
        merges += [("an", "t"), ("en", "t"), ("Ġa", "n"), ("is", "t"), ("is", "m")]
        texts = letters + [left + right for left, right in merges]
        tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, merges))
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre.Sequence(
            [
                pre.Split(Regex(SPLIT), "isolated"),
                pre.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        tokenizer.add_tokens([AddedToken("<think>"), AddedToken("<|tool|>")])
        tokenizer.save(str(directory / "tokenizer.json"))
        settings = {
            "eos_token": {"content": "<|im_end|>"},
            "pad_token": "<|endoftext|>",
            "bos_token": None,
            "chat_template": "{{ messages }}",
        }
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))

    return write


@pytest.fixture(scope="session")
def family() -> Qwen35:
    return Qwen35()


@pytest.fixture
def converted(tmp_path, family) -> Callable[..., Converted]:
    """``converted(directory, outtype)``: convert to ``model.gguf`` beside the directory."""

    def run(directory: Path, outtype: str = "f32", **options: Any) -> Converted:
        path = options.pop("path", tmp_path / "model.gguf")
        return convert(directory, path, outtype=outtype, families=[family], **options)

    return run


@pytest.fixture(scope="session")
def read_tensors() -> Callable[[Path], dict[str, np.ndarray]]:
    """Every tensor of a file, dequantised."""

    def read(path: Path) -> dict[str, np.ndarray]:
        formats = QuantFormats()
        with GGUFFile.open(path) as file:
            return {
                name: QuantTensor.from_bytes(
                    file.inventory.bytes(name), formats.of_type(info.ggml_type), info.shape
                )
                .dequantize()
                .numpy()
                for name, info in file.inventory.items()
            }

    return read


NAMES = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@pytest.fixture(scope="session")
def to_hugging_face() -> Callable[..., dict[str, np.ndarray]]:
    """``to_hugging_face(tensors, key_heads, value_heads)``: undo a conversion, name by name."""

    def undo(
        tensors: Mapping[str, np.ndarray], key_heads: int, value_heads: int
    ) -> dict[str, np.ndarray]:
        members = value_heads // key_heads

        def grouped(array: np.ndarray) -> np.ndarray:
            """Tiled value heads along the first axis -> grouped."""
            heads = array.reshape(members, key_heads, -1, *array.shape[1:])
            return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(array.shape)

        def back(local: str, array: np.ndarray, value_rows: int) -> np.ndarray:
            if local in ("attn_qkv.weight", "ssm_conv1d.weight"):
                keys = len(array) - value_rows
                array = np.concatenate((array[:keys], grouped(array[keys:])))
                return array[:, None, :] if local == "ssm_conv1d.weight" else array
            if local in ("attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias"):
                return grouped(array)
            if local == "ssm_a":
                return np.log(-grouped(array))
            if local == "ssm_out.weight":
                return np.ascontiguousarray(grouped(np.ascontiguousarray(array.T)).T)
            if local.endswith("norm.weight") and local != "ssm_norm.weight":
                return array - 1
            return array

        result = {}
        for name, array in tensors.items():
            if name in TOP:
                result[TOP[name]] = back(name, array, 0)
                continue
            _, layer, local = name.split(".", 2)
            gate = tensors.get(f"blk.{layer}.attn_gate.weight")
            value_rows = 0 if gate is None else len(gate)
            result[f"model.layers.{layer}.{NAMES[local]}"] = back(local, array, value_rows)
        return result

    return undo
