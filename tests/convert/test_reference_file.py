"""Our conversion against a file that llama.cpp's own converter wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kinfolk.gguf.file import GGUFFile

KEY_HEADS, VALUE_HEADS = 2, 6

# The name of the directory shows in these.
OF_THE_DIRECTORY = {"general.name", "general.basename"}


@pytest.fixture
def reference(cases):
    with GGUFFile.open(cases / "qwen35.gguf") as file:
        yield file


@pytest.fixture
def source(tmp_path, reference, cases, read_tensors, to_hugging_face):
    """The checkpoint that the reference file was made from, reconstructed."""
    directory = tmp_path / "hf"
    directory.mkdir()
    tensors = to_hugging_face(read_tensors(cases / "qwen35.gguf"), KEY_HEADS, VALUE_HEADS)
    save_file(
        {name: torch.from_numpy(array) for name, array in tensors.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    (directory / "config.json").write_text(json.dumps(config_of(reference)))
    write_tokenizer_of(reference, directory)
    return directory


def config_of(file: GGUFFile) -> dict[str, object]:
    meta = file.metadata
    integer = lambda key: meta.integer(meta.arch_key(key))  # noqa: E731
    recurrent = meta.booleans(meta.arch_key("attention.recurrent_layers"))
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "float32",
        "vocab_size": len(meta.strings("tokenizer.ggml.tokens")),
        "hidden_size": integer("embedding_length"),
        "intermediate_size": integer("feed_forward_length"),
        "num_hidden_layers": integer("block_count"),
        "num_attention_heads": integer("attention.head_count"),
        "num_key_value_heads": integer("attention.head_count_kv"),
        "head_dim": integer("attention.key_length"),
        "hidden_act": "silu",
        "max_position_embeddings": integer("context_length"),
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "linear_num_key_heads": integer("ssm.group_count"),
        "linear_num_value_heads": integer("ssm.time_step_rank"),
        "linear_key_head_dim": integer("ssm.state_size"),
        "linear_value_head_dim": integer("ssm.inner_size") // integer("ssm.time_step_rank"),
        "linear_conv_kernel_dim": integer("ssm.conv_kernel"),
        "layer_types": ["linear_attention" if flag else "full_attention" for flag in recurrent],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": meta.number(meta.arch_key("rope.freq_base")),
            "partial_rotary_factor": integer("rope.dimension_count")
            / integer("attention.key_length"),
            "mrope_section": meta.integers(meta.arch_key("rope.dimension_sections"))[:3].tolist(),
        },
    }


def write_tokenizer_of(file: GGUFFile, directory) -> None:
    """The tokenizer files whose conversion gives the keys of the reference."""
    from tokenizers import Regex, Tokenizer, decoders, models
    from tokenizers import pre_tokenizers as pre

    from kinfolk_qwen35.text import PRETOKENIZERS

    meta = file.metadata
    tokens = list(meta.strings("tokenizer.ggml.tokens"))
    types = meta.integers("tokenizer.ggml.token_type").tolist()
    merges = [tuple(merge.split(" ")) for merge in meta.strings("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    (pattern,) = PRETOKENIZERS[0].patterns
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(pattern), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [text for text, kind in zip(tokens, types, strict=True) if kind == 3]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": tokens[2], "pad_token": tokens[0], "add_bos_token": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def test_the_way_back_leads_to_the_model_the_reference_was_made_from(source, cases):
    """Otherwise the comparison below would have no meaning."""
    from transformers import Qwen3_5ForCausalLM

    stored = np.load(cases / "qwen35.npz")
    model = Qwen3_5ForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(torch.from_numpy(stored["tokens"][None].astype(np.int64))).logits[0].numpy()
    assert np.abs(found - stored["logits"]).max() <= 1e-4 * np.abs(stored["logits"]).max()


def test_keys_types_and_values_are_those_of_the_reference(source, converted, reference):
    with GGUFFile.open(converted(source, "bf16").path) as file:
        assert set(file.metadata) == set(reference.metadata)
        for key in set(reference.metadata) - OF_THE_DIRECTORY:
            ours, theirs = file.metadata.value(key), reference.metadata.value(key)
            assert ours.describe() == theirs.describe(), key
            if ours.is_array:
                assert list(ours.content) == list(theirs.content), key
            else:
                assert ours.content == theirs.content, key


def test_tensors_are_those_of_the_reference(source, converted, reference):
    """Bit for bit, except ``ssm_a``, of which the reconstruction took the logarithm."""
    with GGUFFile.open(converted(source, "bf16").path) as file:
        assert set(file.inventory) == set(reference.inventory)
        for name, theirs in reference.inventory.items():
            ours = file.inventory[name]
            assert (ours.shape, ours.type_name) == (theirs.shape, theirs.type_name), name
            ours_bytes, theirs_bytes = file.inventory.bytes(name), reference.inventory.bytes(name)
            if name.endswith("ssm_a"):
                np.testing.assert_allclose(
                    ours_bytes.view("<f4"), theirs_bytes.view("<f4"), rtol=3e-7
                )
            else:
                assert np.array_equal(ours_bytes, theirs_bytes), name
