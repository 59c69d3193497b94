"""Metadata to configuration: every released size, both ways of writing a number, every refusal."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.gguf.metadata import Metadata
from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk_gemma4.config import read_config
from kinfolk_gemma4.family import Gemma4

LAYERS = 6


def keys(**changes):
    """The keys of a small model in the form converters write; ``None`` removes one."""
    stated = {
        "block_count": LAYERS,
        "context_length": 4096,
        "embedding_length": 64,
        "feed_forward_length": 160,
        "attention.head_count": 4,
        "attention.head_count_kv": [2, 2, 1, 2, 2, 1],
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.key_length_swa": 32,
        "attention.value_length_swa": 32,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 24,
        "attention.sliding_window_pattern": [True, True, False, True, True, False],
        "embedding_length_per_layer_input": 0,
        "vocab_size": 768,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return {f"gemma4.{name}": value for name, value in stated.items() if value is not None}


def config(**changes):
    values = {"general.architecture": "gemma4", **keys(**changes)}
    return read_config(Metadata.from_dict(values, "some/model.gguf"))


@pytest.fixture(scope="module")
def released():
    """``released(name)``: the configuration of a released size."""

    def read(name):
        return read_config(
            Metadata.from_dict(plan_synthetic(find_shape(name, [Gemma4()])).metadata)
        )

    return read


@pytest.mark.parametrize(
    ("name", "layers", "width", "full", "window", "kv", "experts"),
    [
        ("gemma-4-26b-a4b", 30, 2816, 5, 1024, {8, 2}, (128, 8, 704)),
        ("gemma-4-31b", 60, 5376, 10, 1024, {16, 4}, (0, 0, 0)),
        ("gemma-4-e2b", 35, 1536, 7, 512, {1}, (0, 0, 0)),
        ("gemma-4-e4b", 42, 2560, 7, 512, {2}, (0, 0, 0)),
        ("gemma-4-12b", 48, 3840, 8, 1024, {8, 1}, (0, 0, 0)),
    ],
)
def test_released_sizes(released, name, layers, width, full, window, kv, experts):
    found = released(name)
    assert (found.layers, found.width, found.window) == (layers, width, window)
    assert (found.vocabulary, found.norm_eps, found.softcap) == (262144, pytest.approx(1e-6), 30)
    assert found.windowed.count(False) == full
    assert not found.windowed[-1]
    assert set(found.kv_heads) == kv
    assert {d for d, w in zip(found.head_dim, found.windowed, strict=True) if w} == {256}
    assert {d for d, w in zip(found.head_dim, found.windowed, strict=True) if not w} == {512}
    assert (found.rope.dims, found.rope.base) == (512, 1e6)
    assert (found.window_rope.dims, found.window_rope.base) == (256, 1e4)
    assert (max((*found.experts, 0)), found.top_k, found.expert_width) == experts


def test_shared_layers_read_the_last_owner_of_their_kind(released):
    e2b, e4b = released("gemma-4-e2b"), released("gemma-4-e4b")
    assert e2b.owner[:15] == tuple(range(15))
    assert {(w, o) for w, o in zip(e2b.windowed, e2b.owner, strict=True) if o < 15} >= {(True, 13)}
    assert {o for w, o in zip(e2b.windowed[15:], e2b.owner[15:], strict=True) if w} == {13}
    assert {o for w, o in zip(e2b.windowed[15:], e2b.owner[15:], strict=True) if not w} == {14}
    assert {o for w, o in zip(e4b.windowed[24:], e4b.owner[24:], strict=True) if w} == {22}
    assert {o for w, o in zip(e4b.windowed[24:], e4b.owner[24:], strict=True) if not w} == {23}


def test_wide_layers_are_those_that_share(released):
    assert released("gemma-4-e2b").feed_forward == (6144,) * 15 + (12288,) * 20
    assert set(released("gemma-4-e4b").feed_forward) == {10240}


def test_numbers_may_be_one_for_all_layers_or_one_each():
    one = config(feed_forward_length=160, attention__head_count_kv=2)
    each = config(
        feed_forward_length=np.full(LAYERS, 160, np.int32),
        attention__head_count=np.full(LAYERS, 4, np.uint32),
        attention__head_count_kv=np.full(LAYERS, 2, np.int32),
    )
    assert one == each
    assert one.feed_forward == (160,) * LAYERS


def test_what_a_file_may_leave_out():
    found = config(attention__head_count_kv=None, attention__value_length=None)
    assert found.kv_heads == (4,) * LAYERS
    assert found.owner == tuple(range(LAYERS))
    assert (found.rope.dims, found.rope.base) == (64, 1e6)
    assert (found.window_rope.dims, found.window_rope.base) == (32, 1e4)
    assert found.softcap == 30
    assert found.experts == ()


def test_a_softcap_of_zero_is_none(load, variant, reference):
    from kinfolk.testing.driver import Driver

    def capped(value):
        path = variant(
            "gemma4", keys=lambda keys: keys.update({"gemma4.final_logit_softcapping": value})
        )
        drive = Driver(load(path))
        lease = drive.open()
        return drive.feed({lease: reference("gemma4")[0][:20]})[lease]

    plain, bent = capped(0.0), capped(2.0)
    assert float(plain.abs().max()) > 5
    assert float((bent - 2 * (plain / 2).tanh()).abs().max()) < 1e-5


@pytest.mark.parametrize(
    "name",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.key_length",
        "attention.key_length_swa",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "embedding_length_per_layer_input",
    ],
)
def test_a_key_that_is_missing_is_named(name):
    with pytest.raises(ModelFormatError, match=rf"'gemma4\.{name}' is missing"):
        config(**{name: None})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"attention__sliding_window_pattern": 6}, ModelFormatError, "expected a bool"),
        ({"attention__sliding_window_pattern": [True] * 5}, ModelFormatError, "has 5 entries"),
        ({"attention__head_count_kv": [2, 2, 1, 2, 2]}, ModelFormatError, "has 5 entries"),
        ({"attention__head_count_kv": 3}, ModelFormatError, "no multiples"),
        (
            {"attention__head_count_kv": [2, 2, 0, 2, 2, 1]},
            ModelFormatError,
            "is 0 for layer 2, expected at least 1",
        ),
        (
            {"feed_forward_length": [160] * 5 + [-1]},
            ModelFormatError,
            "is -1 for layer 5, expected at least 1",
        ),
        ({"attention__sliding_window": 0}, ModelFormatError, "is 0, expected at least 1"),
        ({"attention__value_length": 32}, UnsupportedModelError, "needs them equal"),
        ({"attention__value_length_swa": 16}, UnsupportedModelError, "value_length_swa' is 16"),
        ({"attention__shared_kv_layers": 6}, ModelFormatError, "none owns any"),
        ({"attention__shared_kv_layers": 4}, ModelFormatError, "no full-attention layer before"),
        ({"expert_count": 4}, ModelFormatError, "expert_used_count' is missing"),
        ({"expert_count": 4, "expert_used_count": 5}, ModelFormatError, "is 5, of 4 experts"),
        (
            {"expert_count": 4, "expert_used_count": 2},
            ModelFormatError,
            "expert_feed_forward_length' is missing",
        ),
        ({"rope__dimension_count": 128}, ModelFormatError, "is 128, expected an even number"),
        ({"rope__scaling__type": "yarn"}, UnsupportedModelError, "is 'yarn'"),
        ({"attn_logit_softcapping": 50.0}, UnsupportedModelError, "is 50.0"),
        ({"attention__scale": 0.125}, UnsupportedModelError, "is 0.125"),
        ({"expert_gating_func": 2}, UnsupportedModelError, "is 2"),
        ({"rope.scaling.factor": 8.0}, UnsupportedModelError, "rope.scaling.factor' or .* extends"),
        ({"expert_weights_scale": 2.5}, UnsupportedModelError, "is 2.5"),
        ({"expert_shared_count": 1}, UnsupportedModelError, "is 1"),
    ],
)
def test_what_cannot_be_run_is_refused_by_key_and_file(change, error, message):
    with pytest.raises(error, match=message) as caught:
        config(**change)
    assert "some/model.gguf" in str(caught.value)
    assert "gemma4." in str(caught.value)


def test_a_drafter_is_told_from_a_model(registry):
    for name in ("gemma4-assistant", "gemma4_assistant"):
        with pytest.raises(UnsupportedModelError, match="pass it with --draft-model"):
            registry.family_for(name)
    assert registry.family_for("gemma4").name == "gemma4"
