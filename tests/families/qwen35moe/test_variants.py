"""Forms in which files store the same model, blocks after the trunk, and refusals."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.values import Value
from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk.testing.driver import Driver
from kinfolk_qwen35moe.config import read_config
from kinfolk_qwen35moe.family import Qwen35Moe

BOUND = 2e-4
CASE = "qwen35moe"
FULL_LAYER = 3


@pytest.fixture
def logits(load, reference):
    """``logits(path)``: of the tokens of the reference case."""

    def run(path):
        drive = Driver(load(path))
        lease = drive.open()
        return drive.feed({lease: reference(CASE)[0]})[lease]

    return run


@pytest.fixture
def plain(variant, logits):
    return logits(variant(CASE))


def blocks(tensors, local):
    """Prefixes of the layers that have a tensor."""
    return [name.removesuffix(local) for name in tensors if name.endswith(f".{local}")]


# -- one model, several files ---------------------------------------------------------------------


def test_gate_and_up_of_experts_may_be_one_tensor(variant, logits, plain):
    def fuse(tensors):
        for block in blocks(tensors, "ffn_gate_exps.weight"):
            parts = [tensors.pop(f"{block}ffn_{part}_exps.weight") for part in ("gate", "up")]
            tensors[f"{block}ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)

    path = variant(CASE, fuse)
    with GGUFFile.open(path) as file:
        assert "blk.0.ffn_gate_up_exps.weight" in file.inventory
    assert torch.equal(logits(path), plain)


def test_projections_of_attention_may_be_one_tensor(variant, logits, plain, row_error):
    """The fused tensor has the name that the projection of a delta net has in other layers."""

    def fuse(tensors):
        parts = [tensors.pop(f"blk.{FULL_LAYER}.attn_{part}.weight") for part in "qkv"]
        tensors[f"blk.{FULL_LAYER}.attn_qkv.weight"] = np.concatenate(parts)

    assert row_error(logits(variant(CASE, fuse)), plain) <= BOUND


@pytest.mark.parametrize("shape", [(64,), (1, 64)])
def test_the_gate_of_the_shared_expert_may_be_a_vector_or_a_row(variant, logits, plain, shape):
    def reshape(tensors):
        for block in blocks(tensors, "ffn_gate_inp_shexp.weight"):
            name = f"{block}ffn_gate_inp_shexp.weight"
            tensors[name] = tensors[name].reshape(shape)

    path = variant(CASE, reshape)
    with GGUFFile.open(path) as file:
        assert file.inventory["blk.0.ffn_gate_inp_shexp.weight"].shape == shape
    assert torch.equal(logits(path), plain)


def test_without_an_output_matrix_the_embedding_is_it(variant, logits):
    def tie(tensors):
        del tensors["output.weight"]

    def repeat(tensors):
        tensors["output.weight"] = tensors["token_embd.weight"]

    assert torch.equal(logits(variant(CASE, tie)), logits(variant(CASE, repeat)))


def test_routed_experts_can_be_scaled(variant, logits, plain, row_error):
    def double(tensors):
        for block in blocks(tensors, "ffn_down_exps.weight"):
            name = f"{block}ffn_down_exps.weight"
            tensors[name] = tensors[name] * 2

    def scale(keys):
        keys["qwen35moe.expert_weights_scale"] = Value("f32", 2.0)

    scaled = logits(variant(CASE, keys=scale))
    assert row_error(scaled, logits(variant(CASE, double))) <= BOUND
    assert row_error(scaled, plain) > 100 * BOUND


# -- blocks that predict further tokens -----------------------------------------------------------


def add_draft_block(tensors):
    """Block 5: an attention layer with experts, and the head of a predictor."""
    for name in [name for name in tensors if name.startswith(f"blk.{FULL_LAYER}.")]:
        tensors[name.replace(f"blk.{FULL_LAYER}.", "blk.5.")] = tensors[name] * 2
    tensors["blk.5.nextn.eh_proj.weight"] = np.ones((64, 128))
    for name in ("enorm", "hnorm", "shared_head_norm"):
        tensors[f"blk.5.nextn.{name}.weight"] = np.ones(64)


def count_draft_block(keys):
    keys["qwen35moe.block_count"] = Value("u32", 6)
    keys["qwen35moe.nextn_predict_layers"] = Value("u32", 1)


@pytest.mark.parametrize("flags", [5, 6, 0])
def test_a_draft_block_is_recognised_and_left_alone(variant, load, logits, plain, flags, caplog):
    """The list of layer kinds may or may not mention it, or be missing."""

    def change(keys):
        count_draft_block(keys)
        kinds = [layer % 4 != 3 for layer in range(5)] + [False]
        keys["qwen35moe.attention.recurrent_layers"] = np.array(kinds[:flags])
        if not flags:
            del keys["qwen35moe.attention.recurrent_layers"]

    path = variant(CASE, add_draft_block, change)
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        assert torch.equal(logits(path), plain)
    assert not caplog.records
    loaded = load(path)
    assert (loaded.config.layers, loaded.config.draft_layers) == (5, 1)
    assert loaded.config.experts == (12,) * 5
    plan = loaded.family.weight_plan(loaded.config, loaded.file.inventory)
    ours = {name for name in loaded.file.inventory if name.startswith("blk.5.")}
    assert ours == set(plan.ignored)
    assert set(plan.ignored.values()) == {"predicts further tokens; used by drafters only"}


def test_a_file_of_draft_blocks_alone_is_no_model(variant, load):
    def only(tensors):
        add_draft_block(tensors)
        for name in [name for name in tensors if name.startswith("blk.") and name[4] != "5"]:
            del tensors[name]

    with pytest.raises(UnsupportedModelError, match="a drafter, not a model"):
        load(variant(CASE, only, count_draft_block))


# -- metadata -------------------------------------------------------------------------------------


def config(cases, **changes):
    with GGUFFile.open(cases / f"{CASE}.gguf") as file:
        values = {key: file.metadata.value(key) for key in file.metadata}
    for name, value in changes.items():
        key = f"qwen35moe.{name}"
        values.pop(key, None)
        if value is not None:
            values |= {key: Metadata.from_dict({key: value}).value(key)}
    return read_config(Metadata(values, "some/model.gguf"))


def test_widths_of_experts_may_be_one_or_one_a_layer(cases):
    each = config(cases, expert_feed_forward_length=np.full(5, 32, np.int32))
    assert each == config(cases)
    assert each.expert_width == (32,) * 5


@pytest.mark.parametrize(
    "name",
    [
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "rope.freq_base",
        "rope.dimension_count",
        "ssm.inner_size",
    ],
)
def test_a_key_that_is_missing_is_named(cases, name):
    with pytest.raises(ModelFormatError, match=rf"qwen35moe\.{name}.*missing"):
        config(cases, **{name: None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_used_count": 13}, "expert_used_count' is 13, expected 1 to 12"),
        ({"expert_used_count": 0}, "expert_used_count"),
        ({"expert_gating_func": 2}, "expert_gating_func"),
        ({"ssm.inner_size": 96}, "96 inner channels .* do not fit 6 value heads .* of 32"),
        ({"norm_top_k_prob": False}, "norm_top_k_prob"),
        ({"expert_feed_forward_length": [32] * 4}, "4 entries, expected one for each of 5"),
    ],
)
def test_what_is_not_implemented_is_refused_by_key(cases, changes, message):
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=message):
        config(cases, **changes)


@pytest.mark.parametrize(
    ("name", "layers", "full", "width", "heads", "experts"),
    [
        ("qwen3.5-35b-a3b", 40, 10, 2048, (16, 2, 32), (256, 8, 512)),
        ("qwen3.5-122b-a10b", 48, 12, 3072, (32, 2, 64), (256, 8, 1024)),
        ("qwen3.5-397b-a17b", 60, 15, 4096, (32, 2, 64), (512, 10, 1024)),
    ],
)
def test_released_sizes(name, layers, full, width, heads, experts):
    shape = find_shape(name, [Qwen35Moe()])
    found = read_config(Metadata.from_dict(plan_synthetic(shape).metadata))
    assert (found.layers, found.recurrent.count(False), found.width) == (layers, full, width)
    assert (found.heads, found.kv_heads, found.value_heads) == heads
    assert (found.experts[0], found.top_k, found.expert_width[0]) == experts
    assert found.shared_width == found.expert_width[0]
    assert (found.vocabulary, found.context) == (248320, 262144)
    assert (found.rope.dims, found.rope.base) == (64, 1e7)
