"""Checkpoints of random models: no tensor is lost, and the file gives the checkpoint's logits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from mtp_bench import Bench
from safetensors.torch import load_file, save_file

from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.gguf.file import GGUFFile
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

CONFIGS = {
    "one value head a key head": {"linear_num_value_heads": 2},
    "two value heads a key head, tied": {
        "linear_num_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "three value heads a key head": {"linear_num_value_heads": 6},
    "three key heads, five layers": {
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 6,
        "num_hidden_layers": 5,
        "full_attention_interval": 2,
    },
    "attention first": {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    },
    "four query heads a key head": {"num_attention_heads": 8, "num_key_value_heads": 2},
}
HEADS = {"linear_num_key_heads": 2, "linear_num_value_heads": 6}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def config(request):
    return request.param


def test_the_way_back_gives_the_checkpoint(
    config, checkpoint, converted, read_tensors, to_hugging_face
):
    directory = checkpoint(**config)
    stored = load_file(directory / "model.safetensors")
    sizes = HEADS | config
    found = to_hugging_face(
        read_tensors(converted(directory).path),
        sizes["linear_num_key_heads"],
        sizes["linear_num_value_heads"],
    )
    assert set(found) == set(stored)
    for name, tensor in stored.items():
        if name.endswith("A_log"):
            np.testing.assert_allclose(found[name], tensor.numpy(), atol=1e-6)
        else:
            assert np.array_equal(found[name], tensor.numpy()), name


def test_logits_are_those_of_transformers(config, checkpoint, converted, random_model):
    directory = checkpoint(**config)
    tokens = torch.randint(0, 320, (130,), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = random_model(**config)(tokens[None]).logits[0]
    settings = load_settings(device="cpu", dtype="f32", context=256, slots=1)
    loaded = load_model(converted(directory).path, settings, Registry.discover(settings))
    found = torch.cat(list(logits(loaded, tokens.tolist())))
    error = (found - expected).abs().amax(1) / expected.abs().amax(1)
    assert float(error.max()) <= 2e-4


def test_layers_are_told_in_both_ways(checkpoint, converted):
    """Readers that know the list of recurrent layers prefer it to the interval."""
    path = converted(checkpoint(**CONFIGS["attention first"])).path
    with GGUFFile.open(path) as file:
        meta = file.metadata
        flags = meta.booleans("qwen35.attention.recurrent_layers").tolist()
        assert flags == [False, True, True]
        assert meta.integer("qwen35.full_attention_interval") == 1


# -- layers for multi-token prediction ------------------------------------------------------------


def draft_tensors(model_tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """A prediction layer made of the model's full-attention layer and a new head."""
    width = model_tensors["model.norm.weight"].shape[0]
    layer = {
        name.replace("model.layers.3.", f"{prefix}layers.0."): tensor * 2
        for name, tensor in model_tensors.items()
        if name.startswith("model.layers.3.")
    }
    generator = torch.Generator().manual_seed(5)
    head = {
        "fc.weight": torch.randn(width, 2 * width, generator=generator),
        "pre_fc_norm_embedding.weight": torch.full((width,), 0.25),
        "pre_fc_norm_hidden.weight": torch.full((width,), -0.5),
        "norm.weight": torch.full((width,), 0.75),
    }
    return layer | {prefix + name: tensor for name, tensor in head.items()}


@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp."])
def test_a_prediction_layer_follows_the_trunk(
    prefix, checkpoint, converted, edit_tensors, read_tensors
):
    """The layer is found by its tensors: the configuration of a text model does not mention it."""
    directory = checkpoint()
    edit_tensors(directory, lambda tensors: tensors.update(draft_tensors(tensors, prefix)))
    stored = load_file(directory / "model.safetensors")
    path = converted(directory).path
    with GGUFFile.open(path) as file:
        meta = file.metadata
        assert meta.integer("qwen35.block_count") == 5
        assert meta.integer("qwen35.nextn_predict_layers") == 1
        flags = meta.booleans("qwen35.attention.recurrent_layers").tolist()
        assert flags == [True, True, True, False, False]
        assert file.inventory["blk.4.nextn.eh_proj.weight"].shape == (64, 128)
    found = read_tensors(path)
    assert np.array_equal(found["blk.4.nextn.eh_proj.weight"], stored[f"{prefix}fc.weight"])
    assert (found["blk.4.nextn.enorm.weight"] == 1.25).all()
    assert (found["blk.4.nextn.hnorm.weight"] == 0.5).all()
    assert (found["blk.4.nextn.shared_head_norm.weight"] == 1.75).all()
    for name in ("attn_q.weight", "attn_output.weight", "ffn_down.weight"):
        assert np.array_equal(found[f"blk.4.{name}"], 2 * found[f"blk.3.{name}"])


@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
@pytest.mark.parametrize("weights", ["dense", "blocks"])
def test_a_prediction_layer_drafts(outtype, weights, checkpoint, converted, edit_tensors):
    directory = checkpoint()
    edit_tensors(directory, lambda tensors: tensors.update(draft_tensors(tensors, "mtp.")))
    path = converted(directory, outtype=outtype).path
    options = {"device": "cpu", "dtype": "f32", "context": 128, "slots": 1, "draft": "mtp"}
    options |= {"draft_option": "head=64", "weights": weights}
    settings = load_settings(**options)
    bench = Bench(load_model(path, settings, Registry.discover(settings)))
    lease = bench.open(100)
    bench.extend({lease: ([5, 6, 7], torch.ones(3, 64))})
    proposals = bench.draft({lease: 8})
    assert proposals.tokens.shape == (1, 3, 8)
    assert int(proposals.tokens.max()) < 64
    assert bool(proposals.scores.isfinite().all())


def test_a_promised_prediction_layer_that_is_not_there_is_not_promised_on(
    checkpoint, converted, edit_json
):
    directory = checkpoint()
    edit_json(directory / "config.json", lambda config: config.update(mtp_num_hidden_layers=1))
    with GGUFFile.open(converted(directory).path) as file:
        assert file.metadata.integer("qwen35.block_count") == 4
        assert "qwen35.nextn_predict_layers" not in file.metadata


# -- the multimodal wrapper -----------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_a_multimodal_checkpoint_gives_the_file_of_its_text_model(
    prefix, checkpoint, converted, tmp_path
):
    plain = checkpoint()
    expected = converted(plain, path=tmp_path / "plain.gguf").path.read_bytes()
    wrapped = tmp_path / "wrapped" / plain.name
    wrapped.mkdir(parents=True)
    tensors = {
        name.replace("model.", prefix, 1): tensor
        for name, tensor in load_file(plain / "model.safetensors").items()
    }
    tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(8, 8)
    save_file(tensors, wrapped / "model.safetensors")
    text = json.loads((plain / "config.json").read_text())
    config = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": False}
    (wrapped / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (wrapped / name).write_text((plain / name).read_text())
    assert converted(wrapped).path.read_bytes() == expected


def test_an_output_matrix_that_repeats_the_embedding_is_left_out(
    checkpoint, converted, edit_tensors
):
    directory = checkpoint(tie_word_embeddings=True)
    edit_tensors(
        directory,
        lambda tensors: tensors.update(
            {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
        ),
    )
    with GGUFFile.open(converted(directory).path) as file:
        assert "output.weight" not in file.inventory


def test_context_extension_is_stated(checkpoint, converted, edit_json):
    directory = checkpoint()
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    edit_json(directory / "config.json", lambda config: config["rope_parameters"].update(yarn))
    with GGUFFile.open(converted(directory).path) as file:
        meta = file.metadata
        assert meta.string("qwen35.rope.scaling.type") == "yarn"
        assert meta.number("qwen35.rope.scaling.factor") == 4.0
        assert meta.integer("qwen35.rope.scaling.original_context_length") == 1024


def test_sections_that_are_not_stated_are_the_published_ones(checkpoint, converted, edit_json):
    """Readers require the key even for text alone, where it has no effect."""
    directory = checkpoint()
    edit_json(
        directory / "config.json", lambda config: config["rope_parameters"].pop("mrope_section")
    )
    with GGUFFile.open(converted(directory).path) as file:
        sections = file.metadata.integers("qwen35.rope.dimension_sections").tolist()
        assert sections == [11, 11, 10, 0]


def test_shards_are_read_as_one(checkpoint, converted, tmp_path):
    directory = checkpoint()
    expected = converted(directory, path=tmp_path / "one.gguf").path.read_bytes()
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {}
    for index, name in enumerate(sorted(tensors)):
        weight_map[name] = f"model-{index % 3 + 1:05}-of-00003.safetensors"
    for file in set(weight_map.values()):
        part = {name: tensors[name] for name in tensors if weight_map[name] == file}
        save_file(part, directory / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert converted(directory).path.read_bytes() == expected
