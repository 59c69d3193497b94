"""Building blocks of plain decoders: keys, tensors, rows in pairs, conversion of configurations."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.convert.checkpoint import Config
from kinfolk.convert.dense import DenseShape, Stretch, metadata, outline, read_shape, tensors
from kinfolk.errors import ConversionError, ModelFormatError, UnsupportedModelError
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.dense.config import DenseConfig, read_dense
from kinfolk.nn.dense.state import DenseHooks, dense_state
from kinfolk.nn.dense.weights import dense_weights
from kinfolk.nn.rope import half_split
from kinfolk.plans import Codec, StateLimits
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk.testing.checkpoints import dense_options

SHAPE = DenseShape(320, 64, 1024, 2, 4, 2, 16, 96, 5e5, tied=True)
STRETCH = Stretch(factor=8.0, low=1.0, high=4.0, context=8192)


def meta(**changes):
    keys = {f"plain.{key}": value for key, value in metadata(SHAPE).items()}
    keys |= {"general.architecture": "plain", "plain.vocab_size": 320}
    keys |= {f"plain.{key.replace('__', '.')}": value for key, value in changes.items()}
    return Metadata.from_dict({k: v for k, v in keys.items() if v is not None}, "some/model.gguf")


def config(**changes):
    return DenseConfig(**read_dense(meta(**changes)))


# -- keys -----------------------------------------------------------------------------------------


def test_what_conversion_writes_is_what_the_configuration_reads():
    found = config()
    assert (found.layers, found.width, found.vocabulary, found.context) == (2, 64, 320, 1024)
    assert (found.heads, found.kv_heads, found.head_dim, found.feed_forward) == (4, 2, 16, 96)
    assert (found.rope.dims, found.rope.base) == (16, 5e5)


def test_what_a_file_may_leave_out():
    found = config(
        attention__head_count_kv=None,
        attention__key_length=None,
        attention__value_length=None,
        rope__dimension_count=None,
        rope__freq_base=None,
    )
    assert (found.kv_heads, found.head_dim) == (4, 16)
    assert (found.rope.dims, found.rope.base) == (16, 10000.0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"block_count": None}, ModelFormatError, "'plain.block_count' is missing"),
        ({"attention__head_count_kv": 3}, ModelFormatError, "is 3, which does not divide the 4"),
        ({"attention__value_length": 8}, UnsupportedModelError, "value_length"),
        ({"expert_count": 8}, UnsupportedModelError, "'plain.expert_count' is 8"),
        ({"rope__scaling__type": "longrope"}, UnsupportedModelError, "is 'longrope'"),
        ({"rope__dimension_count": 18}, ModelFormatError, "is 18, expected an even number"),
    ],
)
def test_what_cannot_be_run_is_refused_by_key_and_file(changes, error, message):
    with pytest.raises(error, match=message) as caught:
        config(**changes)
    assert "some/model.gguf" in str(caught.value)


# -- tensors --------------------------------------------------------------------------------------


def inventory(shape, **changed):
    held = {recipe.name: recipe.shape for recipe in tensors(shape)} | changed
    return Inventory(
        [TensorInfo(name, size, 0, "F32", None, 0, 0, 0) for name, size in held.items()]
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("stretch", [None, STRETCH])
def test_conversion_writes_the_tensors_that_the_plan_asks_for(tied, norms, stretch):
    shape = replace(SHAPE, tied=tied, head_norms=norms, stretch=stretch)
    there = inventory(shape)
    plan = list(dense_weights(config(), there, head_norms=norms))
    assert {spec.tensor for spec in plan} == set(there)
    assert all(there[spec.tensor].shape == spec.shape for spec in plan)
    (head,) = (spec for spec in plan if spec.name == "output.weight")
    assert head.tensor == ("token_embd.weight" if tied else "output.weight")


def test_a_sequence_keeps_keys_and_values_in_the_storage_asked_for():
    limits = StateLimits(1, 0, (), 1024, 512, codec=Codec("f16"))
    plan = dense_state(config(), limits)
    assert plan == DenseHooks().allocate_cache(config(), limits)
    assert len(plan.layers) == 2
    (layer, _) = plan.layers
    assert [(s.name, s.heads, s.dim, s.codec.format) for s in layer.sections] == [
        ("k", 2, 16, "f16"),
        ("v", 2, 16, "f16"),
    ]
    assert dense_state(config(), replace(limits, codec=None)).layers[0].sections[0].codec == Codec()


def test_an_outline_is_the_file_of_the_shape():
    found = outline(SHAPE, {"more": 1.5})
    assert dict(found.tensors) == {recipe.name: recipe.shape for recipe in tensors(SHAPE)}
    assert found.metadata["more"] == 1.5
    assert found.group == 2


# -- pairs of rows --------------------------------------------------------------------------------


def order_of(shape, name):
    (made,) = (recipe for recipe in tensors(shape) if recipe.name == name)
    return made.transform


@pytest.mark.parametrize(("part", "heads"), [("q", 4), ("k", 2)])
def test_half_split_undoes_what_conversion_does_to_neighbours(part, heads):
    rows = np.arange(heads * 16 * 64, dtype=np.float32).reshape(-1, 64)
    stored = order_of(replace(SHAPE, neighbours=True), f"blk.0.attn_{part}.weight").apply(rows)
    # Rows i and i + half of a head stand side by side.
    assert [int(row[0]) // 64 for row in stored[:6]] == [0, 8, 1, 9, 2, 10]
    assert torch.equal(half_split(torch.from_numpy(stored), heads), torch.from_numpy(rows))
    plain = order_of(SHAPE, f"blk.0.attn_{part}.weight").apply(rows)
    assert np.array_equal(plain, rows)


def test_half_split_moves_quantised_rows_as_they_are():
    numbers = torch.randn(4 * 16, 64, generator=torch.Generator().manual_seed(0))
    format_ = QuantFormats().named("Q8_0")
    from kinfolk.convert.driver import encode

    stored = encode(numbers.numpy(), format_).reshape(64, -1)
    weight = QuantTensor.from_bytes(stored, format_, (64, 64))
    moved = half_split(weight, 4)
    assert isinstance(moved, QuantTensor)
    assert torch.equal(moved.dequantize(), half_split(weight.dequantize(), 4))


def test_half_split_leaves_dimensions_alone_that_do_not_turn():
    rows = torch.arange(2 * 6)[:, None]
    assert half_split(rows, 2, dims=4).flatten().tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


# -- configurations of Hugging Face models --------------------------------------------------------

USUAL = {
    "model_type": "plain",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}


LLAMA = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def shape_of(tmp_path, **changes):
    values = {key: value for key, value in (USUAL | changes).items() if value is not None}
    return read_shape(Config(json.loads(json.dumps(values)), tmp_path / "config.json"))


def test_a_configuration_is_the_shape(tmp_path):
    assert shape_of(tmp_path) == SHAPE
    older = shape_of(tmp_path, rope_parameters=None, rope_theta=5e5, num_key_value_heads=None)
    assert older == replace(SHAPE, kv_heads=4)
    assert shape_of(tmp_path, head_dim=32).head_dim == 32
    unused = {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 1}
    assert shape_of(tmp_path, layer_types=["full_attention"] * 2, **unused) == SHAPE


def test_an_embedding_may_stand_under_its_old_name(tmp_path):
    new = shape_of(tmp_path, rope_parameters=LLAMA | {"rope_theta": 5e5})
    assert new.stretch == STRETCH
    old = {key.replace("rope_type", "type"): value for key, value in LLAMA.items()}
    assert new == shape_of(tmp_path, rope_parameters=None, rope_scaling=old, rope_theta=5e5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
        ({"attention_bias": True}, "'attention_bias' is True"),
        ({"mlp_bias": True}, "'mlp_bias' is True"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "'rope_scaling' stands beside"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": None},
            "'rope_scaling.type' is 'linear'",
        ),
        ({"use_sliding_window": True, "sliding_window": 64}, "'use_sliding_window' is True"),
        ({"sliding_window": 64}, "'sliding_window' is 64"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'layer_types' is"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor' is not 1"),
        ({"rope_parameters": LLAMA | {"factor": 0}}, "'rope_parameters.factor' is 0"),
        ({"rope_parameters": LLAMA | {"low_freq_factor": 4.0}}, "high_freq_factor' is 4.0"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type' is 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "'rope_parameters.factor' is missing"),
        ({"num_hidden_layers": None}, "'num_hidden_layers' is missing"),
    ],
)
def test_what_the_file_cannot_express_is_refused_by_key(tmp_path, changes, message):
    with pytest.raises(ConversionError, match=message):
        shape_of(tmp_path, **changes)


def test_stretched_rotations_are_those_of_transformers(tmp_path):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = dense_options(replace(SHAPE, stretch=STRETCH))["rope_parameters"]
    shape = shape_of(tmp_path, rope_parameters=rope, head_dim=128)
    assert shape.stretch == STRETCH
    divisors = STRETCH.divisors(shape.rope_base, 128)
    theirs = LlamaConfig(head_dim=128, rope_parameters=rope, max_position_embeddings=131072)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    usual = 5e5 ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    torch.testing.assert_close(
        usual / torch.tensor(divisors, dtype=torch.float64),
        expected.double(),
        rtol=1e-5,
        atol=0,
    )
    assert 1.0 in divisors
    assert divisors[-1] == pytest.approx(8)
