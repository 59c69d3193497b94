"""Checkpoints and targets that cannot be converted: what is wrong, where, with which numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dflash_bench import write_file
from dflash_configs import authors_config, library_config
from dflash_reference import Shape, random_tensors

from kinfolk.convert.driver import convert
from kinfolk.errors import ConversionError

SHAPE = Shape()
REDUCED = Shape(d2t=(0, 1, 2))
HEAD = torch.ones(3, SHAPE.width)
ONE = torch.ones(2, 2)


def config(**changes):
    return authors_config(SHAPE) | changes


REFUSED = {
    "no mask": (
        config(dflash_config={"target_layer_ids": [1, 3, 4]}),
        {},
        ("dflash_config.mask_token_id", "is missing"),
    ),
    "feature layers of another number": (
        authors_config(SHAPE, target_layer_ids=[1, 3]),
        {},
        ("'target_layer_ids' lists 2 layers", "takes 192 numbers", "64"),
    ),
    "feature layers before the first layer": (
        library_config(SHAPE, aux_hidden_state_layer_ids=[0, 2, 4]),
        {},
        ("aux_hidden_state_layer_ids", "[-1, 1, 3]"),
    ),
    "sizes that differ": (config(num_attention_heads=8), {}, ("'num_attention_heads' is 8", "4")),
    "layers that differ": (config(num_hidden_layers=3), {}, ("'num_hidden_layers' is 3", "2")),
    "another vocabulary": (config(vocab_size=99), {}, ("'vocab_size' is 99", "has 101 tokens")),
    "windows without a size": (
        config(layer_types=["sliding_attention", "full_attention"]),
        {},
        ("'sliding_window' is missing",),
    ),
    "kinds of layers": (
        config(layer_types=["full_attention", "linear_attention"]),
        {},
        ("'layer_types'", "linear_attention"),
    ),
    "an embedding that turns in part": (
        config(partial_rotary_factor=0.5),
        {},
        ("partial_rotary_factor",),
    ),
    "labels of the next token": (config(shift_label=True), {}, ("'shift_label'",)),
    "drafts from the anchor": (config(sample_from_anchor=True), {}, ("'sample_from_anchor'",)),
    "Domino": (authors_config(SHAPE, projector_type="domino"), {}, ("projector_type", "domino")),
    "DSpark": (config(), {"markov_head.markov_w1.weight": ONE}, ("'markov_head", "DSpark")),
    "a key that nobody knows": (config(dflash_depth=3), {}, ("'dflash_depth' = 3",)),
    "a tensor that nobody knows": (config(), {"gru.weight": ONE}, ("'gru.weight'",)),
    "an activation": (config(hidden_act="relu"), {}, ("'hidden_act'", "relu")),
    "a bias": (config(attention_bias=True), {}, ("'attention_bias'",)),
    "tokens without a head": (
        library_config(REDUCED),
        {"d2t": torch.zeros(3, dtype=torch.long)},
        ("'d2t' lists 3 tokens", "no head"),
    ),
    "tokens twice": (
        library_config(REDUCED),
        {"d2t": torch.tensor([1, 0, 0]), "lm_head.weight": HEAD},
        ("'d2t' leads to 3 tokens from 1 to 2",),
    ),
    "tokens beyond the vocabulary": (
        library_config(REDUCED),
        {"d2t": torch.tensor([0, 0, 99]), "lm_head.weight": HEAD},
        ("from 0 to 101", "below 101"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_where_and_why(name, save, converted):
    settings, tensors, words = REFUSED[name]
    with pytest.raises(ConversionError) as caught:
        converted(save(settings, random_tensors(SHAPE) | tensors), SHAPE)
    message = str(caught.value)
    assert "Some-Drafter" in message
    for word in words:
        assert word in message


def test_an_embedding_of_masks_is_refused(save, converted):
    directory = save(config(), random_tensors(SHAPE))
    (directory / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(ConversionError, match=r"mask_embedding\.pt"):
        converted(directory, SHAPE)


def test_a_checkpoint_of_a_model_is_no_drafter(save, converted):
    tensors = {name: t for name, t in random_tensors(SHAPE).items() if name != "fc.weight"}
    with pytest.raises(ConversionError, match="no installed drafter converts"):
        converted(save(config(), tensors), SHAPE)


def test_a_drafter_without_a_target_is_told_of_the_option(save, tmp_path, family):
    directory = save(config(), random_tensors(SHAPE))
    with pytest.raises(ConversionError, match="a drafter is converted with --target MODEL"):
        convert(directory, tmp_path / "x.gguf", outtype="f32", families=[family])


def test_a_target_must_be_there_and_have_a_vocabulary(save, converted, tmp_path):
    directory = save(config(), random_tensors(SHAPE))
    with pytest.raises(ConversionError, match="no such file or directory"):
        converted(directory, SHAPE, target=tmp_path / "missing.gguf")
    keys = {"general.architecture": "some"}
    bare = write_file(tmp_path / "bare.gguf", keys, {"x": np.zeros((1, 1))})
    with pytest.raises(ConversionError, match="has no vocabulary"):
        converted(directory, SHAPE, target=bare)


def test_nothing_is_left_of_a_conversion_that_was_refused(save, converted, tmp_path):
    directory = save(config(vocab_size=99), random_tensors(SHAPE))
    with pytest.raises(ConversionError):
        converted(directory, SHAPE)
    assert not list(tmp_path.glob("draft*"))


def test_a_target_may_be_a_directory(save, converted, checkpoint, family):
    """Its family reads the tokenizer, as if the model itself were converted."""
    target = checkpoint()
    shape = Shape(vocabulary=320)
    directory = save(authors_config(shape), random_tensors(shape))
    path = converted(directory, shape, target=target, families=[family]).path
    from kinfolk.gguf.file import GGUFFile

    with GGUFFile.open(path) as file:
        tokens = file.metadata.strings("tokenizer.ggml.tokens")
        assert len(tokens) == 320
        assert "<|im_end|>" in tokens[:]
        assert file.metadata.integer("tokenizer.ggml.mask_token_id") == shape.mask
