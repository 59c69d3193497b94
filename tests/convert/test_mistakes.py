"""Checkpoints and places that cannot work: said before anything is written, by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from kinfolk.convert.driver import convert
from kinfolk.errors import ConversionError, KinfolkError, OutputError
from kinfolk_qwen35.family import Qwen35


@pytest.fixture
def refused(converted, tmp_path):
    """``refused(directory, *words)``: the conversion fails, says the words and leaves no file."""

    def check(directory, *words, kind=ConversionError, outtype="f32"):
        with pytest.raises(kind) as failure:
            converted(directory, outtype)
        message = str(failure.value)
        assert all(word in message for word in words), message
        assert [path.name for path in tmp_path.glob("*.gguf*")] == []

    return check


# -- tensors --------------------------------------------------------------------------------------

LAYER = "model.layers.1."


def test_a_missing_tensor_is_named(checkpoint, refused, edit_tensors):
    directory = checkpoint()
    edit_tensors(directory, lambda tensors: tensors.pop(f"{LAYER}linear_attn.A_log"))
    refused(directory, f"tensor '{LAYER}linear_attn.A_log' is missing", str(directory))


def test_several_missing_tensors_are_counted(checkpoint, refused, edit_tensors):
    directory = checkpoint()

    def drop(tensors):
        for name in [name for name in tensors if name.startswith(LAYER)]:
            del tensors[name]

    edit_tensors(directory, drop)
    refused(directory, "tensors 'model.layers.1.", "and 9 more are missing")


def test_a_tensor_that_is_left_over_is_named(checkpoint, refused, edit_tensors):
    directory = checkpoint()
    edit_tensors(directory, lambda tensors: tensors.update(adapter=torch.zeros(2)))
    refused(directory, "tensor 'adapter' is not part of the model")


def test_a_tensor_of_another_shape_is_named_with_both(checkpoint, refused, edit_tensors):
    directory = checkpoint()
    edit_tensors(directory, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(63)}))
    refused(directory, "'model.norm.weight' has shape [63]", "asks for [64]", ".safetensors")


def test_a_tensor_stored_twice_is_named(checkpoint, refused, edit_tensors):
    directory = checkpoint()
    edit_tensors(
        directory,
        lambda tensors: tensors.update({"model.language_model.norm.weight": torch.zeros(64)}),
    )
    refused(directory, "'model.norm.weight'", "'model.language_model.norm.weight'")


def test_numbers_that_are_not_finite_are_refused(checkpoint, refused, edit_tensors):
    directory = checkpoint()
    edit_tensors(
        directory, lambda tensors: tensors["model.layers.0.mlp.up_proj.weight"][3].fill_(np.nan)
    )
    refused(directory, "'model.layers.0.mlp.up_proj.weight'", "not finite")


def test_eight_bit_checkpoints_are_refused(checkpoint, refused, edit_tensors):
    directory = checkpoint()

    def shrink(tensors):
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    edit_tensors(directory, shrink)
    refused(directory, "'model.layers.0.mlp.up_proj.weight' is stored as F8_E4M3", "bfloat16")


def test_two_prediction_layers_are_refused(checkpoint, refused, edit_tensors):
    directory = checkpoint()
    edit_tensors(
        directory,
        lambda tensors: tensors.update(
            {f"mtp.layers.{i}.input_layernorm.weight": torch.zeros(64) for i in range(2)}
        ),
    )
    refused(directory, "2 mtp.layers")


# -- files ----------------------------------------------------------------------------------------


def test_a_cut_off_shard_is_named(checkpoint, refused):
    directory = checkpoint()
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(directory, str(path), "not a complete safetensors file")


def test_a_shard_that_was_not_downloaded_is_named(checkpoint, refused):
    directory = checkpoint()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(directory, "file 'model-00001-of-00002.safetensors' is missing")


def test_a_directory_without_weights_is_refused(checkpoint, refused):
    directory = checkpoint()
    (directory / "model.safetensors").unlink()
    refused(directory, "holds no *.safetensors")


def test_what_is_no_model_directory_is_refused(tmp_path, refused):
    refused(tmp_path / "nowhere", "not a directory")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "config.json", "No such file")
    (tmp_path / "empty" / "config.json").write_text("{")
    refused(tmp_path / "empty", "config.json", "not valid JSON")


# -- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, ("key 'hidden_size' is missing",)),
        ({"hidden_size": "64"}, ("key 'hidden_size' is '64', expected an integer",)),
        ({"head_dim": 0}, ("key 'head_dim' is 0, expected at least 1",)),
        ({"attention_bias": True}, ("key 'attention_bias' is True", "False")),
        ({"hidden_act": "gelu"}, ("key 'hidden_act' is 'gelu'", "'silu'")),
        ({"layer_types": ["full_attention"]}, ("'layer_types' has 1 entries", "expected 4")),
        ({"linear_num_value_heads": 5}, ("linear_num_value_heads", "no multiple of 2")),
        ({"rope_parameters": {}}, ("'rope_theta' is missing",)),
        (
            {"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear"}},
            ("'rope_parameters.rope_type' is 'linear'",),
        ),
        ({"hidden_size": 2**31}, ("key 'hidden_size' is 2147483648, expected 1 to 2147483647",)),
        ({"num_hidden_layers": 300_000_000}, ("'num_hidden_layers' is 300000000, expected 1 to",)),
        ({"rms_norm_eps": 0.0}, ("would refuse", "layer_norm_rms_epsilon' is 0, expected above 0")),
        ({"rms_norm_eps": float("nan")}, ("'rms_norm_eps' is nan, expected a finite number",)),
        ({"model_type": "mamba9"}, ("no installed family", "'mamba9'", "qwen35")),
        ({"vocab_size": 310}, ("vocab_size 310", "id 310")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_configuration_that_cannot_work_is_refused_by_its_key(
    changes, words, checkpoint, refused, edit_json, edit_tensors
):
    directory = checkpoint()
    edit_json(directory / "config.json", lambda config: config.update(changes))
    if "vocab_size" in changes:
        cut = {"model.embed_tokens.weight", "lm_head.weight"}
        edit_tensors(
            directory,
            lambda tensors: tensors.update(
                {name: tensors[name][: changes["vocab_size"]].clone() for name in cut}
            ),
        )
    refused(directory, *words)


def test_a_model_that_two_families_claim_is_refused(checkpoint, tmp_path):
    other = type("Other", (Qwen35,), {"name": "other"})()
    with pytest.raises(ConversionError, match="both qwen35 and other claim"):
        convert(checkpoint(), tmp_path / "m.gguf", outtype="f32", families=[Qwen35(), other])


def test_an_unknown_outtype_is_answered_with_the_known_ones(checkpoint, refused):
    refused(checkpoint(), "'q9'", "f32", "q4_k_m", outtype="q9")
    refused(checkpoint(), "'iq4_xs'", outtype="iq4_xs")


# -- the place of the file ------------------------------------------------------------------------


def test_an_existing_file_is_replaced_only_when_asked(checkpoint, converted, tmp_path):
    directory, path = checkpoint(), tmp_path / "model.gguf"
    path.write_text("precious")
    with pytest.raises(OutputError, match="exists"):
        converted(directory)
    assert path.read_text() == "precious"
    converted(directory, overwrite=True)
    assert path.read_bytes()[:4] == b"GGUF"


def test_a_place_that_is_none_is_refused(checkpoint, converted, tmp_path):
    directory = checkpoint()
    with pytest.raises(OutputError, match="does not exist"):
        converted(directory, path=tmp_path / "no" / "model.gguf")
    with pytest.raises(OutputError, match="is a directory"):
        converted(directory, path=directory)


def test_an_interruption_leaves_nothing(checkpoint, converted, tmp_path):
    def interrupt(done: int, total: int) -> None:
        assert (tmp_path / "model.gguf.partial").exists()
        raise KeyboardInterrupt

    directory = checkpoint()
    with pytest.raises(KeyboardInterrupt):
        converted(directory, progress=interrupt)
    assert list(tmp_path.glob("model.gguf*")) == []


def test_what_a_killed_run_left_is_replaced(checkpoint, converted, tmp_path):
    directory = checkpoint()
    expected = converted(directory, path=tmp_path / "clean.gguf").path.read_bytes()
    (tmp_path / "model.gguf.partial").write_bytes(b"x" * 10_000_000)
    assert converted(directory).path.read_bytes() == expected
    assert not (tmp_path / "model.gguf.partial").exists()


def test_a_full_disk_is_noticed_before_weights_are_written(checkpoint, refused, monkeypatch):
    usage = type("Usage", (), {"free": 100_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    refused(checkpoint(), "GB are free", kind=KinfolkError)


def test_progress_ends_at_the_whole(checkpoint, converted):
    seen: list[tuple[int, int]] = []
    converted(checkpoint(), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
