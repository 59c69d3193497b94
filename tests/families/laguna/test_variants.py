"""Forms in which files store the same model, optional keys and tensors, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.rope import frequencies, magnitude
from kinfolk.plans import PoolRule
from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk.testing.driver import Driver
from kinfolk_laguna.config import read_config
from kinfolk_laguna.family import Laguna

BOUND = 2e-4
CASE = "laguna"
LAYERS, WINDOW = 6, 24
DERIVED = 0.1 * math.log(8) + 1


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


@pytest.fixture
def config(cases):
    """``config(name=value)``: of the reference case with keys changed; ``None`` removes one."""
    with GGUFFile.open(cases / f"{CASE}.gguf") as file:
        stored = {key: file.metadata.value(key) for key in file.metadata}

    def read(changes=(), **more):
        values = dict(stored)
        for name, value in (dict(changes) | more).items():
            key = f"laguna.{name}"
            values.pop(key, None)
            if value is not None:
                values |= {key: Metadata.from_dict({key: value}).value(key)}
        return read_config(Metadata(values, "some/model.gguf"))

    return read


def blocks(tensors, local):
    """Prefixes of the layers that have a tensor."""
    return [name.removesuffix(local) for name in tensors if name.endswith(f".{local}")]


# -- one model, several files ---------------------------------------------------------------------


def test_projections_of_attention_may_be_one_tensor(variant, logits, plain, row_error):
    def fuse(tensors):
        for block in blocks(tensors, "attn_q.weight"):
            parts = [tensors.pop(f"{block}attn_{part}.weight") for part in "qkv"]
            tensors[f"{block}attn_qkv.weight"] = np.concatenate(parts)

    assert row_error(logits(variant(CASE, fuse)), plain) <= BOUND


def test_one_gate_an_element_may_say_what_one_a_head_says(variant, logits, plain, row_error):
    def widen(tensors):
        for block in blocks(tensors, "attn_gate.weight"):
            gate = f"{block}attn_gate.weight"
            tensors[gate] = tensors[gate].repeat(32, axis=0)

    path = variant(CASE, widen)
    with GGUFFile.open(path) as file:
        assert file.inventory["blk.1.attn_gate.weight"].shape == (192, 64)
    assert row_error(logits(path), plain) <= BOUND


def test_without_an_output_matrix_the_embedding_is_it(variant, logits):
    def tie(tensors):
        del tensors["output.weight"]

    def repeat(tensors):
        tensors["output.weight"] = tensors["token_embd.weight"]

    assert torch.equal(logits(variant(CASE, tie)), logits(variant(CASE, repeat)))


def test_the_scale_is_of_routed_experts_alone(variant, logits, plain, row_error):
    def divide(tensors):
        for block in blocks(tensors, "ffn_down_exps.weight"):
            name = f"{block}ffn_down_exps.weight"
            tensors[name] = tensors[name] / 2.5

    def without(keys):
        del keys["laguna.expert_weights_scale"]

    def stretch(tensors):
        for block in blocks(tensors, "ffn_down_exps.weight"):
            name = f"{block}ffn_down_exps.weight"
            tensors[name] = tensors[name] * 2.5

    assert row_error(logits(variant(CASE, stretch, without)), plain) <= BOUND
    assert row_error(logits(variant(CASE, divide)), logits(variant(CASE, keys=without))) <= BOUND


def test_a_gate_of_another_size_is_refused(variant, load):
    def cut(tensors):
        tensors["blk.1.attn_gate.weight"] = tensors["blk.1.attn_gate.weight"][:5]

    with pytest.raises(ModelFormatError, match=r"attn_gate\.weight' has 5 rows; expected 6 .* 192"):
        load(variant(CASE, cut))


# -- windows --------------------------------------------------------------------------------------


def test_the_pattern_that_files_leave_out_has_the_full_layer_first(config):
    assert config().windowed == (False, True, True, True, False, True)


@pytest.mark.parametrize(
    ("stated", "windowed"),
    [
        (4, [False, True, True, True, False, True]),
        (2, [False, True] * 3),
        (1, [False] * LAYERS),
        ([True, False, False, True, True, True], [True, False, False, True, True, True]),
    ],
)
def test_the_pattern_may_be_a_period_or_a_flag_a_layer(config, stated, windowed):
    found = config({"attention.sliding_window_pattern": stated})
    assert found.windowed == tuple(windowed)
    assert (found.window_rope is None) == (not any(windowed))


@pytest.mark.parametrize("stated", [None, 0])
def test_without_a_window_every_layer_sees_everything(config, stated):
    swa = {"rope.freq_base_swa": None, "rope.dimension_count_swa": None}
    found = config({"attention.sliding_window": stated} | swa)
    assert found.windowed == (False,) * LAYERS
    assert (found.window, found.window_rope) == (None, None)


def test_windowed_and_full_sections_are_two_pools_with_a_rule_each(load, cases):
    loaded = load(cases / f"{CASE}.gguf")
    assert loaded.plan.windows == (None, WINDOW)
    assert loaded.mapping.rules == (PoolRule(None, sink=1, tail=4), PoolRule(WINDOW))
    assert [layer.window for layer in loaded.plan.layers] == [
        WINDOW if flag else None for flag in loaded.config.windowed
    ]


def test_chunks_leave_the_windowed_pool_once_the_window_has_passed(driver, reference):
    drive = driver(CASE)
    lease = drive.open()
    drive.feed({lease: reference(CASE)[0]}, rows=7)
    assert len(drive.kv_cache.tables.table(lease, 0)) == 3
    # 160 positions: rows from 161 on see positions from 137 on, in the third chunk.
    assert [chunk for chunk, _ in drive.kv_cache.tables.table(lease, 1)] == [2]


# -- rotary embeddings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("laguna-xs.2", {8: 0.0276703, 12: 0.0027969, 16: 4.41942e-5, 24: 1.66197e-6}),
        ("laguna-xs-2.1", {8: 0.0342941, 12: 0.00408141, 16: 2.93289e-4, 31: 9.41831e-8}),
        ("laguna-s-2.1", {8: 0.0376060, 12: 0.00488077, 16: 3.22863e-4, 31: 2.35458e-8}),
    ],
)
def test_frequencies_of_released_models(name, pairs):
    """The file's own ``beta_fast`` counts, and the rotated dimensions, not those of a head."""
    shape = find_shape(name, [Laguna()])
    found = read_config(Metadata.from_dict(plan_synthetic(shape, layers=2).metadata))
    turned = frequencies(found.rope).tolist()
    assert len(turned) == 32
    assert turned[:2] == pytest.approx([1, 0.663601], rel=1e-5)
    for pair, angle in pairs.items():
        assert turned[pair] == pytest.approx(angle, rel=1e-5)
    plain = frequencies(found.window_rope).tolist()
    assert plain == pytest.approx([1e4 ** (-pair / 64) for pair in range(64)], rel=1e-12)
    assert magnitude(found.window_rope) == 1


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, DERIVED),
        ({"yarn_attn_factor": 1.0}, DERIVED),
        ({"yarn_attn_factor": DERIVED}, DERIVED),
        ({"yarn_attn_factor": 1.5}, 1.5),
        ({"attn_factor": 0.5}, 0.5 * DERIVED),
        ({"attn_factor": 1 / DERIVED, "yarn_attn_factor": 1.0}, 1.0),
    ],
)
def test_what_a_file_says_about_the_magnitude(config, keys, expected):
    found = config({f"rope.scaling.{name}": number for name, number in keys.items()})
    assert magnitude(found.rope) == pytest.approx(expected, rel=1e-6)
    assert magnitude(found.window_rope) == 1


def test_the_magnitude_can_be_set_where_the_file_is_ambiguous(config):
    stated = config()
    yarn = stated.rope.yarn.model_copy(update={"magnitude": 1.0})
    rope = stated.rope.model_copy(update={"yarn": yarn})
    assert magnitude(stated.model_copy(update={"rope": rope}).rope) == 1.0


def test_without_context_extension_there_is_none(config):
    found = config({"rope.scaling.type": None})
    assert found.rope.yarn is None
    assert magnitude(found.rope) == 1


# -- other keys -----------------------------------------------------------------------------------


def test_heads_may_be_one_number_for_all_layers(config):
    assert config({"attention.head_count": 6}).heads == (6,) * LAYERS
    assert config().heads == (4, 6, 6, 6, 4, 6)


def test_a_file_may_leave_out_what_is_the_same_in_all(config):
    names = ("expert_gating_func", "expert_weights_norm", "attention.value_length")
    assert config(dict.fromkeys(names)) == config()


def test_the_width_of_shared_experts_follows_from_their_number(config):
    found = config(expert_shared_feed_forward_length=None, expert_shared_count=2)
    assert found.shared_width == 64


def test_the_first_layers_have_no_experts(config):
    assert config().experts == (0, *(12,) * 5)
    assert config(leading_dense_block_count=3).experts == (0, 0, 0, 12, 12, 12)


@pytest.mark.parametrize(
    "name",
    [
        "attention.head_count",
        "attention.key_length",
        "rope.freq_base",
        "rope.freq_base_swa",
        "rope.dimension_count",
        "rope.dimension_count_swa",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "feed_forward_length",
        "leading_dense_block_count",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
    ],
)
def test_a_key_that_is_missing_is_named(config, name):
    with pytest.raises(ModelFormatError, match=rf"laguna\.{name}.*missing"):
        config({name: None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.head_count": [4, 6, 6, 6, 4]}, "5 entries"),
        ({"attention.head_count": 5}, "no multiples of 2 key heads"),
        ({"attention.head_count_kv": [2, 2, 2, 2, 1, 2]}, "head_count_kv"),
        ({"attention.value_length": 16}, "value_length"),
        ({"attention.sliding_window_pattern": 0}, "sliding_window_pattern"),
        ({"attention.sliding_window_pattern": [True] * 5}, "5 entries"),
        ({"rope.dimension_count": 15}, "expected an even number up to the 32"),
        ({"rope.dimension_count_swa": 34}, "expected an even number up to the 32"),
        ({"rope.scaling.type": "longrope"}, "longrope"),
        ({"expert_used_count": 13}, "expert_used_count' is 13, expected 1 to 12"),
        ({"expert_gating_func": 1}, "expert_gating_func"),
        ({"expert_weights_norm": False}, "expert_weights_norm"),
        ({"leading_dense_block_count": 7}, "block_count' is 7, expected 0 to 6"),
        ({"attention.layer_types": ["full"] * LAYERS}, "early form"),
        ({"rope.swa.freq_base": 1e4}, "early form"),
    ],
)
def test_what_is_not_implemented_is_refused_by_key(config, changes, message):
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=message):
        config(changes)


@pytest.mark.parametrize(
    ("name", "layers", "width", "heads", "full", "experts", "dense"),
    [
        ("laguna-xs.2", 40, 2048, (48, 64), 10, (256, 8, 512), 1),
        ("laguna-xs-2.1", 40, 2048, (48, 64), 10, (256, 8, 512), 1),
        ("laguna-s-2.1", 48, 3072, (48, 72), 12, (256, 10, 1024), 1),
        ("laguna-m.1", 70, 4096, (64,), 70, (256, 16, 1024), 3),
    ],
)
def test_released_sizes(name, layers, width, heads, full, experts, dense):
    shape = find_shape(name, [Laguna()])
    found = read_config(Metadata.from_dict(plan_synthetic(shape).metadata))
    assert (found.layers, found.width) == (layers, width)
    assert tuple(sorted(set(found.heads))) == heads
    assert (found.kv_heads, found.head_dim, found.rope.dims) == (8, 128, 64)
    assert found.windowed.count(False) == full
    assert found.window == (None if full == layers else 512)
    assert (found.experts[-1], found.top_k, found.expert_width[-1]) == experts
    assert found.experts.count(0) == dense
    assert found.expert_scale == (1.0 if full == layers else 2.5)
