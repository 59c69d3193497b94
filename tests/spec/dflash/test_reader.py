"""What files of both layouts say, what they leave unsaid, and what is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dflash_bench import (
    SHAPES,
    TARGET_LAYERS,
    Bench,
    TableTarget,
    facts,
    file_keys,
    file_tensors,
    write_file,
)
from dflash_reference import Shape, random_tensors

from kinfolk.draft_api import DraftPlan
from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.gguf.file import GGUFFile
from kinfolk.nn.rope import frequencies, magnitude
from kinfolk.plans import Paged
from kinfolk.spec.dflash.config import DFlashConfig, spread_layers
from kinfolk.spec.dflash.prepare import prepare
from kinfolk.spec.dflash.reader import read_config

ARCH = {"A": "some-dflash-draft", "B": "dflash"}
GATED = SHAPES["gates of heads"]


@pytest.fixture
def plan(tmp_path: Path):
    """``plan(shape, layout, keys, tensors, target)``: the plan of a drafter; ``keys`` without
    prefix and ``tensors`` replace those of the file, ``None`` removes one."""

    def make(shape=None, layout="B", keys=None, tensors=None, **target) -> DraftPlan:
        shape = shape or Shape()
        found = file_keys(shape, layout) | {
            key if key.startswith(("tokenizer", "general")) else f"{ARCH[layout]}.{key}": value
            for key, value in (keys or {}).items()
        }
        arrays = file_tensors(random_tensors(shape), layout) | (tensors or {})
        path = write_file(
            tmp_path / "draft.gguf",
            {key: value for key, value in found.items() if value is not None},
            {name: array for name, array in arrays.items() if array is not None},
        )
        with GGUFFile.open(path) as file:
            return prepare(file, facts(shape, **target))

    return make


def config_of(plan: DraftPlan) -> DFlashConfig:
    assert isinstance(plan.config, DFlashConfig)
    return plan.config


# -- feature layers ------------------------------------------------------------------------------

SPREAD = {
    (64, 5): (1, 16, 31, 46, 61),
    (40, 5): (1, 10, 19, 28, 37),
    (40, 8): (1, 6, 11, 16, 22, 27, 32, 37),
    (60, 6): (1, 12, 23, 35, 46, 57),
    (48, 5): (1, 12, 23, 34, 45),
    (36, 5): (1, 9, 17, 25, 33),
    (32, 5): (1, 8, 15, 22, 29),
    (28, 5): (1, 7, 13, 19, 25),
    (24, 5): (1, 6, 11, 16, 21),
    (34, 5): (1, 8, 16, 24, 31),
    (9, 1): (4,),
}


@pytest.mark.parametrize(("size", "expected"), SPREAD.items(), ids=str)
def test_feature_layers_that_no_list_states(size, expected):
    layers, count = size
    assert spread_layers(count, layers) == expected


def test_both_conventions_mean_outputs_of_layers(plan):
    shape = Shape(feature_layers=(0, 2, 5))
    assert plan(shape, "A").features == plan(shape, "B").features == (0, 2, 5)


def test_a_file_of_layout_a_without_a_list_reads_layers_that_are_spread(plan):
    found = plan(layout="A", keys={"dflash.target_layer_ids": None}, layers=9)
    assert found.features == (1, 4, 6) == spread_layers(3, 9)


# -- the plan -------------------------------------------------------------------------------------


def test_state_follows_windows_layer_by_layer(plan):
    found = plan(SHAPES["sliding, then full"])
    assert [layer.window for layer in found.state if isinstance(layer, Paged)] == [9, 9, None]
    assert (found.block, found.depth, found.fill, found.final) == (6, 5, 100, False)


def test_a_plan_needs_no_torch(plan):
    import subprocess
    import sys

    code = (
        "import kinfolk.spec.dflash.prepare, kinfolk.convert.dflash.conversion, sys;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("layout", "AB")
@pytest.mark.parametrize("name", ["sliding, then full", "gates of heads", "gates of elements"])
def test_both_layouts_have_one_configuration(name, layout, plan):
    shape = SHAPES[name]
    found = config_of(plan(shape, layout)).model_dump(exclude={"architecture", "name"})
    other = config_of(plan(shape, "B")).model_dump(exclude={"architecture", "name"})
    for one in (found, other):
        # Layout A has no key for a scale of 1: it leaves scales to the target.
        one.pop("embedding_scale")
    assert found == other


def test_old_names_of_layout_a(plan):
    tensors = file_tensors(random_tensors(Shape()), "A")
    renamed = {
        "dflash_fc.weight": tensors["dflash.fc.weight"],
        "dflash.fc.weight": None,
        "dflash_hidden_norm.weight": tensors["dflash.hidden_norm.weight"],
        "dflash.hidden_norm.weight": None,
        "blk.0.post_attention_norm.weight": tensors["blk.0.ffn_norm.weight"],
        "blk.0.ffn_norm.weight": None,
    }
    sources = {spec.name: spec.tensor for spec in plan(layout="A", tensors=renamed).weights}
    assert sources["fc.weight"] == "dflash_fc.weight"
    assert sources["enc.output_norm.weight"] == "dflash_hidden_norm.weight"
    assert sources["blk.0.ffn_norm.weight"] == "blk.0.post_attention_norm.weight"


def test_a_wrong_number_of_feature_layers_in_layout_a_does_not_count(plan):
    """A converter writes the depth of the target there."""
    assert len(plan(layout="A", keys={"dflash.n_target_layers": 60}).features) == 3


def test_files_of_decoders_are_causal_and_norm_their_context(plan):
    shape = replace(GATED, causal=(True, True))
    keys = {"decoder_arch": "any", "attention.causal": None, "context_kv_layer_norm": None}
    found = config_of(plan(shape, keys=keys))
    assert found.context_norm
    assert all(layer.causal for layer in found.layers)


def test_without_a_key_windowed_layers_are_causal_and_others_are_not(plan):
    found = config_of(plan(SHAPES["sliding, then full"]))
    assert [layer.causal for layer in found.layers] == [True, True, False]


def test_a_window_without_a_pattern_is_that_of_all_layers(plan):
    keys = {"attention.sliding_window": 20, "attention.sliding_window_pattern": None}
    assert [layer.window for layer in config_of(plan(keys=keys)).layers] == [20, 20]


def test_defaults_of_keys_that_may_be_missing(plan):
    keys = dict.fromkeys(
        ("block_size", "attention.layer_norm_rms_epsilon", "hidden_activation", "logit_scale")
    )
    found = config_of(plan(keys=keys))
    assert (found.block, found.norm_eps, found.activation) == (16, 1e-6, "silu")
    assert found.logit_scale == 1.0


# -- rotation -------------------------------------------------------------------------------------


def test_yarn_has_the_published_numbers(plan):
    shape = Shape(dim=128, heads=1, kv_heads=1, theta=1e7, yarn=(64.0, 4096, 32.0, 1.0))
    config = config_of(plan(shape))
    found = frequencies(config.rope)
    golden = {
        10: 8.058422e-02,
        12: 4.550103e-02,
        20: 2.658406e-03,
        26: 2.239082e-05,
        63: 2.009995e-09,
    }
    assert found[list(golden)].tolist() == pytest.approx(list(golden.values()), rel=1e-5)
    assert magnitude(config.rope) == pytest.approx(1.4158883083)
    assert config.attention_scale is None  # 1 / sqrt(128), whatever the factor


# -- warnings -------------------------------------------------------------------------------------


def test_layout_a_without_windows_and_with_a_suspect_base_is_warned_of(plan, caplog):
    keys = dict.fromkeys(("attention.sliding_window", "attention.sliding_window_pattern"))
    with caplog.at_level(logging.WARNING):
        plan(layout="A", keys=keys | {"rope.freq_base": 1e6})
    windows, base = (record.getMessage() for record in caplog.records)
    assert "some-dflash-draft.attention.sliding_window" in windows
    assert "draft.gguf" in windows
    assert "some-dflash-draft.rope.freq_base" in base
    assert "1e6" in base


@pytest.mark.parametrize("layout", "AB")
def test_a_file_that_says_everything_is_not_warned_of(layout, plan, caplog):
    with caplog.at_level(logging.WARNING):
        plan(SHAPES["sliding, then full"], layout)
    assert not caplog.records


def test_a_key_that_contradicts_a_tensor_is_mentioned(plan, caplog):
    with caplog.at_level(logging.WARNING):
        found = plan(keys={"attention.head_count": 7})
    assert config_of(found).heads == 4
    assert "7" in caplog.text
    assert "attn_q" in caplog.text


# -- refusals -------------------------------------------------------------------------------------

SMALL = np.ones((2, 2), np.float32)
NO_LIST = {"target_layers": None}
REFUSED = {
    "feature layers of another number": (
        {"keys": {"target_layers": [2, 4]}},
        ("'dflash.target_layers' lists 2 layers", "'fc.weight' takes 3·64 numbers"),
    ),
    "a layer twice": ({"keys": {"target_layers": [2, 2, 4]}}, ("[2, 2, 4]", "from 1 on")),
    "the input of the first layer": ({"keys": {"target_layers": [0, 2, 4]}}, ("[0, 2, 4]",)),
    "no feature layers": ({"keys": NO_LIST}, ("'dflash.target_layers' is missing",)),
    "no feature layers, and too few layers to spread them": (
        {"layout": "A", "keys": {"dflash.target_layer_ids": None}, "layers": 4},
        ("dflash.target_layer_ids' is missing", "3 feature layers", "over the 4"),
    ),
    "another width": ({"width": 512}, ("'fc.weight' takes 3·64 numbers", "have 512")),
    "a mask beyond the target's vocabulary": (
        {"layout": "A", "keys": {"vocab_size": None}, "vocabulary": 99},
        ("token 100", "target.gguf has 99"),
    ),
    "no mask": (
        {"keys": {"tokenizer.ggml.mask_token_id": None}},
        ("'tokenizer.ggml.mask_token_id'", "is missing"),
    ),
    "no mask in layout A": (
        {"layout": "A", "keys": {"dflash.mask_token_id": None}},
        ("'some-dflash-draft.dflash.mask_token_id'", "is missing"),
    ),
    "a mask beyond the vocabulary": (
        {"keys": {"tokenizer.ggml.mask_token_id": 101}},
        ("mask_token_id' is 101",),
    ),
    "a pattern without a window": (
        {
            "keys": {
                "attention.sliding_window": 0,
                "attention.sliding_window_pattern": [True, False],
            }
        },
        ("sliding_window_pattern", "states none"),
    ),
    "a block of more rows than bits": (
        {"keys": {"block_size": 65}},
        ("'dflash.block_size' is 65",),
    ),
    "a missing tensor": (
        {"tensors": {"enc.output_norm.weight": None}},
        ("'enc.output_norm.weight' is missing",),
    ),
    "rows of fc": (
        {"tensors": {"fc.weight": np.ones((64, 200), np.float32)}},
        ("'fc.weight' takes 200 numbers", "64"),
    ),
    "rows of a projection": (
        {"tensors": {"blk.0.attn_q.weight": np.ones((65, 64), np.float32)}},
        ("'blk.0.attn_q.weight' has 65 rows", "16"),
    ),
    "rows of a gate": (
        {"tensors": {"blk.0.attn_gate.weight": np.ones((5, 64), np.float32)}},
        ("'blk.0.attn_gate.weight' has 5 rows", "4·16"),
    ),
    "an activation": ({"keys": {"hidden_activation": "relu"}}, ("'relu'", "silu")),
    "tokens without a head": (
        {"tensors": {"d2t": np.arange(5)}},
        ("'d2t' lists 5 tokens", "is no 'output.weight'"),
    ),
    "tokens twice": (
        {"tensors": {"d2t": np.array([3, 3]), "output.weight": np.ones((2, 64), np.float32)}},
        ("'d2t' lists 2 tokens from 3 to 3",),
    ),
    "a reduced vocabulary in layout A": (
        {"layout": "A", "tensors": {"d2t": np.arange(5)}},
        ("'d2t'", "offsets"),
    ),
    "DSpark": ({"tensors": {"markov_w1.weight": SMALL}}, ("'markov_w1.weight'", "DSpark")),
    "DSpark's confidence": ({"tensors": {"conf_proj.weight": SMALL}}, ("DSpark",)),
    "DSpark in layout A": (
        {"layout": "A", "tensors": {"dflash.dspark.markov.w1": SMALL}},
        ("'dflash.dspark.markov.w1'", "DSpark"),
    ),
    "Domino": (
        {"layout": "A", "tensors": {"dflash.domino.gru.weight_ih": SMALL}},
        ("'dflash.domino.gru.weight_ih'", "Domino"),
    ),
    "sinks": ({"tensors": {"blk.0.attn_sinks.weight": SMALL}}, ("'blk.0.attn_sinks.weight'",)),
    "sandwich norms": (
        {"tensors": {"blk.1.post_attention_norm.weight": SMALL}},
        ("'blk.1.post_attention_norm.weight'",),
    ),
    "a model": (
        {"layout": "A", "tensors": {"dflash.fc.weight": None}},
        ("no DFlash drafter", "'some-dflash-draft'"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_file_key_and_numbers(name, plan):
    arguments, words = REFUSED[name]
    with pytest.raises((ModelFormatError, UnsupportedModelError)) as caught:
        plan(**arguments)
    message = str(caught.value)
    assert "draft.gguf" in message
    for word in words:
        assert word in message


def test_one_of_several_norms_of_features_is_missed(plan):
    with pytest.raises(ModelFormatError, match=r"'dflash\.aux_hidden_norm\.1\.weight' is missing"):
        plan(GATED, "A", tensors={"dflash.aux_hidden_norm.1.weight": None})


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"softcap": 20.0}, "20.0.*30.0"), ({"logit_scale": 2.0}, "2.0.*30.0")],
    ids=["another softcap", "a scale before the softcap"],
)
def test_scales_that_the_targets_head_cannot_have_are_refused(changes, words, tmp_path):
    shape = Shape(**changes)
    path = write_file(
        tmp_path / "d.gguf", file_keys(shape, "B"), file_tensors(random_tensors(shape), "B")
    )
    with pytest.raises(UnsupportedModelError, match=words):
        Bench(path, TableTarget(shape, softcap=30.0), shape)


def test_the_reader_knows_nothing_of_the_target(tmp_path):
    """A file may be looked at by itself."""
    shape = Shape()
    path = write_file(
        tmp_path / "d.gguf", file_keys(shape, "B"), file_tensors(random_tensors(shape), "B")
    )
    with GGUFFile.open(path) as file:
        config = read_config(file.metadata, file.inventory)
    assert config.vocabulary == shape.vocabulary
    assert max(config.feature_layers) < TARGET_LAYERS
