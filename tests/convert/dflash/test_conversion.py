"""Checkpoints of every spelling become files that the reader understands, bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from dflash_bench import Bench, TableTarget, facts, file_tensors, random_features, relative
from dflash_configs import authors_config, library_config, sizes
from dflash_reference import Reference, Shape, random_tensors

from kinfolk.gguf.file import GGUFFile
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk.spec.dflash.config import BlockLayer, Convolution, DFlashConfig, Selector
from kinfolk.spec.dflash.prepare import prepare

BOUND = 2e-5
SLIDING = Shape((9, 9, None), (True, True, False))
ONE_WINDOW = Shape((12, 12), (False, False))
DFLASH2 = Shape((9, None), (True, False), conv=(2, 16), selector=(12, 5), block=8)
GATED = Shape((12, 12), (True, True), feature_norms=True, context_norm=True, gate="head", block=8)
ELEMENTS = Shape((12, 12), (True, True), feature_norms=True, context_norm=True, gate="element")


def opened(path, shape) -> DFlashConfig:
    with GGUFFile.open(path) as file:
        return prepare(file, facts(shape)).config


def stored(path) -> dict[str, np.ndarray]:
    formats = QuantFormats()
    with GGUFFile.open(path) as file:
        return {
            name: QuantTensor.from_bytes(
                file.inventory.bytes(name), formats.of_type(info.ggml_type), info.shape
            )
            .dequantize()
            .numpy()
            for name, info in file.inventory.items()
            if name != "d2t"
        }


def assert_is(config: DFlashConfig, shape: Shape) -> None:
    """Every field of the configuration that a shape has."""
    assert config.feature_layers == shape.feature_layers
    assert config.layers == tuple(
        BlockLayer(window=window, causal=causal)
        for window, causal in zip(shape.windows, shape.causal, strict=True)
    )
    assert (config.block, config.mask_token) == (shape.block, shape.mask)
    assert (config.heads, config.kv_heads, config.head_dim) == (
        shape.heads, shape.kv_heads, shape.dim,
    )  # fmt: skip
    assert (config.width, config.feed_forward) == (shape.width, shape.ff)
    assert config.norm_eps == pytest.approx(shape.eps)
    assert config.rope.base == pytest.approx(shape.theta)
    assert (config.rope.yarn is None) == (shape.yarn is None)
    assert config.gate == (shape.gate or "none")
    assert (config.context_norm, config.feature_norms) == (shape.context_norm, shape.feature_norms)
    conv = None if shape.conv is None else Convolution(taps=shape.conv[0], group=shape.conv[1])
    assert config.convolution == conv
    picks = shape.selector
    selector = None if picks is None else Selector(rank=picks[0], top_k=picks[1])
    assert config.selector == selector
    assert config.draft_ids == shape.d2t


def older_config(shape):
    """Of the first releases: everything beside the sizes, feature layers by the formula."""
    return {
        **sizes(shape),
        "num_target_layers": 6,
        "target_layer_ids": list(shape.feature_layers),
        "mask_token_id": shape.mask,
        "block_size": shape.block,
        "rope_theta": shape.theta,
    }


def gated_config(shape):
    return {
        **authors_config(shape, causal=True),
        "architectures": ["DFlashSomeForCausalLM"],
        "gating": "per-head",
        "rope_theta": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": shape.theta},
            "full_attention": {"rope_type": "yarn", "rope_theta": 5.0},
        },
    }


CONFIGS = {
    "authors": (SLIDING, authors_config(SLIDING)),
    "authors, root is_causal": (ONE_WINDOW, authors_config(ONE_WINDOW) | {"is_causal": False}),
    "authors, windows of use_swa": (
        Shape((30, 30), (True, True)),
        authors_config(Shape(), use_swa=True, swa_window_size=30)
        | {"layer_types": None, "use_sliding_window": False},
    ),
    "windows that are not used": (
        Shape(),
        authors_config(Shape((9, 9))) | {"use_sliding_window": False},
    ),
    "older": (SLIDING, older_config(SLIDING)),
    "rope_parameters": (
        Shape(theta=5e5),
        authors_config(Shape(theta=5e5))
        | {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ),
    "yarn": (
        Shape(yarn=(64.0, 4096, 32.0, 1.0), theta=1e7, dim=32),
        authors_config(Shape(theta=1e7, dim=32))
        | {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 64.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            }
        },
    ),
    "DFlash 2": (DFLASH2, authors_config(DFLASH2)),
    "library": (SLIDING, library_config(SLIDING)),
    "library, bidirectional": (
        ONE_WINDOW,
        library_config(ONE_WINDOW, sliding_window_non_causal=True),
    ),
    "gates of heads": (GATED, gated_config(GATED)),
    "gates of elements": (ELEMENTS, gated_config(ELEMENTS) | {"gating": "per-element"}),
}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def case(request):
    return request.param


def test_every_spelling_gives_the_configuration(case, save, converted):
    shape, config = case
    result = converted(save(config, random_tensors(shape)), shape)
    assert result.family == "dflash"
    assert_is(opened(result.path, shape), shape)


def test_tensors_are_those_of_the_checkpoint_bit_for_bit(case, save, converted):
    shape, config = case
    tensors = random_tensors(shape)
    found = stored(converted(save(config, tensors), shape).path)
    expected = file_tensors(tensors, "B")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


def test_the_converted_drafter_computes_what_the_checkpoint_says(case, save, converted):
    shape, config = case
    tensors, target = random_tensors(shape), TableTarget(shape)
    bench = Bench(converted(save(config, tensors), shape).path, target, shape)
    reference = Reference(shape, tensors, target.table, target.head)
    lease, features = bench.open(), random_features(shape, 23)
    bench.extend({lease: features})
    reference.extend(features)
    assert relative(bench.hidden({lease: 5})[0], reference.hidden(5)) <= BOUND


# -- names ----------------------------------------------------------------------------------------


def renamed(tensors, name_of):
    return {name_of(name): tensor for name, tensor in tensors.items()}


def fused(tensors, layers):
    """Queries, keys and values as one tensor."""
    found = dict(tensors)
    for layer in range(layers):
        p = f"layers.{layer}.self_attn."
        parts = [found.pop(f"{p}{name}_proj.weight") for name in "qkv"]
        found[p + "qkv_proj.weight"] = torch.cat(parts)
    return found


NAMES = {
    "with a prefix": lambda t: renamed(t, lambda name: f"model.{name}"),
    "of an encoder": lambda t: renamed(
        t,
        lambda name: {
            "fc.weight": "encoder.fc.weight",
            "hidden_norm.weight": "encoder.output_norm_enc.weight",
        }.get(name, name),
    ),
    "with fused projections": lambda t: fused(t, 2),
    "with norms of features in the singular": lambda t: renamed(
        t, lambda name: name.replace("aux_hidden_norms", "aux_hidden_norm")
    ),
}


@pytest.mark.parametrize("change", NAMES.values(), ids=NAMES)
def test_tensors_are_known_by_their_other_names(change, save, converted):
    tensors = random_tensors(GATED)
    found = stored(converted(save(gated_config(GATED), change(tensors)), GATED).path)
    for name, array in file_tensors(tensors, "B").items():
        assert np.array_equal(found[name], array), name


def test_interleaved_rotations_become_halves(save, converted):
    """Rows 2i and 2i + 1 of each head turn together in such a checkpoint."""
    shape, tensors = Shape(), random_tensors(Shape())
    order = torch.arange(shape.dim).view(2, -1).T.flatten()
    interleaved = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight")):
            heads = tensor.view(-1, shape.dim, *tensor.shape[1:])
            interleaved[name] = heads[:, order].reshape(tensor.shape)
    config = authors_config(shape) | {"rope_is_neox_style": False}
    found = stored(converted(save(config, interleaved), shape).path)
    for name, array in file_tensors(tensors, "B").items():
        assert np.array_equal(found[name], array), name


# -- vocabularies ---------------------------------------------------------------------------------


def test_the_file_has_the_targets_tokenizer_and_the_mask(save, converted):
    shape = Shape()
    path = converted(save(authors_config(shape), random_tensors(shape)), shape).path
    with GGUFFile.open(path) as file:
        meta = file.metadata
        assert meta.architecture == "dflash"
        assert list(meta.strings("tokenizer.ggml.tokens"))[:2] == ["t0", "t1"]
        assert meta.integer("tokenizer.ggml.eos_token_id") == 7
        assert meta.integer("tokenizer.ggml.mask_token_id") == shape.mask
        assert meta.integers("dflash.target_layers").tolist() == [2, 4, 5]
        assert "tokenizer.chat_template" not in meta


REDUCED = Shape(d2t=(0, 3, 4, 9, 50, 99))


def reduced_tensors(shape):
    """A head over a part of the vocabulary; ``d2t`` has distances from the row."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.tensor(shape.d2t)
    known = torch.zeros(shape.vocabulary, dtype=torch.bool)
    known[ids] = True
    return random_tensors(shape) | {
        "embed_tokens.weight": torch.randn(shape.vocabulary, shape.width, generator=generator),
        "lm_head.weight": torch.randn(len(ids), shape.width, generator=generator),
        "d2t": ids - torch.arange(len(ids)),
        "t2d": known,
        "verifier_norm.weight": torch.ones(shape.width),
    }


def test_a_reduced_head_proposes_tokens_of_the_target(save, converted):
    tensors = reduced_tensors(REDUCED)
    path = converted(save(library_config(REDUCED), tensors), REDUCED).path
    bench = Bench(path, TableTarget(REDUCED), REDUCED)
    assert bench.plan.config.draft_ids == REDUCED.d2t
    embedding, head = tensors["embed_tokens.weight"], tensors["lm_head.weight"]
    reference = Reference(REDUCED, tensors, embedding, head)
    lease, features = bench.open(), random_features(REDUCED, 9)
    bench.extend({lease: features})
    reference.extend(features)
    proposals = bench.draft({lease: 5})
    best = reference.logits(5).log_softmax(-1).topk(6, -1)
    assert torch.equal(proposals.tokens[0], torch.tensor(REDUCED.d2t)[best.indices])
    torch.testing.assert_close(proposals.scores[0], best.values, rtol=0, atol=1e-4)


def test_quantised_drafters_stay_near(save, converted):
    shape = Shape()
    tensors, target = random_tensors(shape), TableTarget(shape)
    directory = save(authors_config(shape), tensors)
    path = converted(directory, shape, "q8_0").path
    bench, reference = (
        Bench(path, target, shape),
        Reference(shape, tensors, target.table, target.head),
    )
    lease, features = bench.open(), random_features(shape, 9)
    bench.extend({lease: features})
    reference.extend(features)
    assert 1e-5 < relative(bench.hidden({lease: 5})[0], reference.hidden(5)) <= 0.1


# -- scales ---------------------------------------------------------------------------------------


def test_scales_are_written_under_the_files_names(save, converted):
    shape = Shape()
    nested = {
        "input_embedding_scale": 8.0,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 30.0,
        "attention_value_scale": 2.0,
    }
    directory = save(authors_config(shape, **nested), random_tensors(shape))
    config = opened(converted(directory, shape).path, shape)
    assert (config.embedding_scale, config.logit_scale) == (8.0, 0.5)
    assert (config.softcap, config.value_scale) == (30.0, 2.0)


def test_a_null_counts_as_missing(save, converted):
    shape = Shape()
    config = authors_config(shape, block_size=None) | {"block_size": 5, "sliding_window": None}
    path = converted(save(config, random_tensors(shape)), shape).path
    assert opened(path, shape).block == 5
    assert json.loads((path.parent / "Some-Drafter" / "config.json").read_text())["block_size"] == 5
