"""From settings and a file to a model: choices, limits, and refusals before weights are read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kinfolk.engine import loading, preparing
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.preparing import choose_device, choose_dtype
from kinfolk.engine.preparing_drafters import HOST_DRAFT, PreparedDrafters
from kinfolk.engine.runtime import Runtime, scheduler_limits
from kinfolk.errors import CapacityError, SettingsError
from kinfolk.plans import Codec, Paged
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

CPU = torch.device("cpu")


def test_auto_is_the_cpu_in_float32_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    assert choose_dtype("auto", CPU) is torch.float32


def test_auto_is_the_gpu_in_bfloat16_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda", 0)
    assert choose_dtype("auto", torch.device("cuda", 0)) is torch.bfloat16


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_has_an_index(monkeypatch, name, index):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(name) == torch.device("cuda", index)


@pytest.mark.parametrize(("name", "count"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_a_device_that_is_not_there_is_refused(monkeypatch, name, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(SettingsError, match=rf"--device {name}: this machine has {count} CUDA"):
        choose_device(name)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_keys_and_values_are_stored_in_the_type_they_are_computed_in(load, dtype):
    model = load(dtype=dtype)
    assert model.limits.codec == Codec(dtype)
    assert load(dtype=dtype, kv_codec="f16").limits.codec == Codec("f16")


def formats(model):
    sections = [
        s for layer in model.plan.layers if isinstance(layer, Paged) for s in layer.sections
    ]
    return {name: {s.codec.format for s in sections if s.name == name} for name in ("k", "v")}


def test_values_may_be_stored_in_another_format_than_keys(load):
    assert formats(load(kv_codec="q8_0")) == {"k": {"q8_0"}, "v": {"q8_0"}}
    assert formats(load(kv_codec="q8_0", v_codec="q4_0")) == {"k": {"q8_0"}, "v": {"q4_0"}}
    assert formats(load(v_codec="q4_0")) == {"k": {"f32"}, "v": {"q4_0"}}


def test_the_limits_follow_the_settings(load):
    model = load(slots=3, checkpoints=5, context=200, draft_tokens=5)
    limits = model.limits
    assert (limits.slots, limits.checkpoints, limits.context) == (3, 5, 200)
    assert limits.step_rows == model.slice_rows
    assert model.info.context == 200
    kv_cache, state = model.new_state()
    assert len(kv_cache.tables.free) == 3
    assert [len(pool.data) - 1 for pool in state.pools] == list(limits.blocks)


def test_state_is_new_each_time(loaded):
    (one, first), (two, second) = loaded.new_state(), loaded.new_state()
    one.open(10)
    assert len(two.tables.free) == len(one.tables.free) + 1
    assert first.pools[0].data.data_ptr() != second.pools[0].data.data_ptr()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"op": "route=fastest"}, SettingsError, "op 'route' has no back end 'fastest'"),
        ({"policy": "strange"}, SettingsError, "strange"),
        ({"model_family": "nobody"}, SettingsError, "nobody"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_weights_are_read(
    load, monkeypatch, settings, error, message
):
    def read(*args, **kwargs):
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "load_weights", read)
    with pytest.raises(error, match=message):
        load(**settings)


def test_a_context_that_does_not_fit_is_refused(load, monkeypatch):
    monkeypatch.setattr(preparing, "free_memory", lambda device: 80 * 2**20)
    with pytest.raises(CapacityError, match=r"context of 4096 needs.*less weights"):
        load(context=4096, slots=100)


def test_weights_that_do_not_fit_as_numbers_stay_packed(load, monkeypatch):
    wanted = []
    original = loading.load_weights

    def read(*args, keep_quantised, **kwargs):
        wanted.append(keep_quantised)
        return original(*args, keep_quantised=keep_quantised, **kwargs)

    monkeypatch.setattr(loading, "load_weights", read)
    # 0.4 million numbers: 1.6 MB in float32.
    for share in (0.6, 1e-5):
        monkeypatch.setattr(preparing, "WEIGHT_SHARE", share)
        load()
    assert wanted == [False, True]


# -- runtime --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "share", "said"),
    [
        ("blocks", 0.6, "--weights dense would take"),
        ("auto", 0.0, "dense weights do not fit"),
        ("auto", 0.6, ""),
        ("dense", 0.6, ""),
    ],
)
def test_weights_that_are_taken_apart_in_every_step_are_warned_about(
    registry, monkeypatch, caplog, weights, share, said
):
    monkeypatch.setattr(preparing, "WEIGHT_SHARE", share)
    settings = load_settings(device="cpu", weights=weights)
    preparing.prepare_model(bundled_model(registry), settings, registry).file.close()
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


def test_plain_weights_are_no_slower_as_blocks(registry, cases, caplog):
    settings = load_settings(device="cpu", weights="blocks")
    preparing.prepare_model(cases / "qwen35.gguf", settings, registry).file.close()
    assert caplog.text == ""


def test_the_scheduler_is_told_what_the_model_can(loaded):
    limits = scheduler_limits(loaded, load_settings(slots=8, quantum=5))
    assert (limits.slots, limits.context, limits.quantum) == (8, 512, 5)
    assert (limits.slice, limits.step_tokens) == (loaded.slice_rows, 2 * loaded.slice_rows)
    assert limits.mixed_slice == 64
    assert limits.max_draft == HOST_DRAFT, "of the drafter of the host"
    assert limits.vocabulary == 768
    asked = load_settings(step_tokens=700, draft_width=4)
    limits = scheduler_limits(replace(loaded, drafters=PreparedDrafters(host_rows=6)), asked)
    assert (limits.max_draft, limits.step_tokens) == (6, 700)
    assert (limits.widths, limits.draft_width) == ("fixed", 4)
    alike = scheduler_limits(loaded, load_settings(batch_invariant=True, mixed_slice=64))
    assert alike.mixed_slice is None, "company decides nothing"


def test_without_a_bundled_model_a_file_must_be_named():
    with pytest.raises(SettingsError, match="name a file with -m"):
        bundled_model(Registry.build({}))


def test_an_unknown_drafter_is_refused_before_anything_is_read(tmp_path, registry):
    settings = load_settings(draft="oracle")
    with pytest.raises(SettingsError, match="oracle"):
        Runtime.open(tmp_path / "absent.gguf", settings, registry)
