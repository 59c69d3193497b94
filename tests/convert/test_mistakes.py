"""Checkpoints and output paths that cannot work: an error names them before a file is written."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.convert.driver import convert
from kinfolk.convert.plan import Transform
from kinfolk.errors import ConversionError, KinfolkError, OutputError, PluginError
from kinfolk.gguf.file import GGUFFile
from kinfolk_qwen35.family import Qwen35


@pytest.fixture
def refused(converted, tmp_path):
    """``refused(directory, *words)``: the conversion fails with these words and leaves no file."""

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


@pytest.mark.parametrize("outtype", ["f16", "q8_0", "q4_0", "q4_k_m"])
def test_a_number_that_a_format_cannot_hold_is_blamed_on_its_tensor(
    outtype, checkpoint, refused, edit_tensors
):
    directory = checkpoint(hidden_size=256)
    name = "model.layers.0.mlp.up_proj.weight"
    edit_tensors(directory, lambda tensors: tensors[name][3, 3].fill_(-1e9))
    refused(directory, "model.safetensors", f"{name!r} cannot be written as", outtype=outtype)


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
        ({"num_attention_heads": 5}, ("num_attention_heads", "no multiple of 2")),
        (
            {"linear_value_head_dim": 16},
            ("key 'linear_value_head_dim' is 16", "'linear_key_head_dim' is 32"),
        ),
        ({"linear_conv_kernel_dim": 1}, ("'linear_conv_kernel_dim' is 1, expected at least 2",)),
        ({"output_gate_type": "sigmoid"}, ("'output_gate_type' is 'sigmoid'", "'swish'")),
        ({"rope_parameters": {}}, ("rope_theta' is missing",)),
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


ROPE = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
YARN = ROPE | {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"beta": 3}, ("does not know the key 'beta' = 3",)),
        (
            {"beta": [1] * 99, "gamma": False, "delta": None},
            ("the keys 'beta' = [1, 1, ", "'gamma' = False"),
        ),
        ({"rope_parameters": ROPE | {"factor": 4}}, ("the key 'rope_parameters.factor' = 4",)),
        ({"rope_parameters": ROPE | {"rope_theta": 1}}, ("rope_theta' is 1.0, expected more",)),
        (
            {"rope_parameters": ROPE | {"partial_rotary_factor": 0.1}},
            ("'rope_parameters.partial_rotary_factor' is 0.1: 3 dimensions would turn", "even"),
        ),
        (
            {"rope_parameters": ROPE | {"mrope_section": [1, 1, 1, 0, 1]}},
            ("mrope_section", "at most 4"),
        ),
        (
            {"rope_parameters": ROPE | {"type": "yarn"}},
            ("'rope_parameters.type' is 'yarn', but 'rope_type' is 'default'",),
        ),
        ({"rope_theta": 5e5}, ("'rope_theta' is 500000.0, but in", "1000000.0; remove one")),
        ({"rope_scaling": YARN}, ("'rope_scaling' stands beside 'rope_parameters'",)),
        ({"rope_parameters": YARN | {"truncate": False}}, ("truncate' is False; only True",)),
        ({"rope_parameters": YARN | {"factor": 0}}, ("factor' is 0, expected more than 0",)),
        ({"rope_parameters": YARN | {"mscale": -1}}, ("mscale' is -1.0, expected no less",)),
        (
            {"rope_parameters": YARN | {"beta_fast": 1, "beta_slow": 5000}},
            ("beta_fast' 1.0 and 'beta_slow' 5000.0 enclose no pair",),
        ),
        ({"rope_parameters": YARN | {"long_factor": [1.0]}}, ("rope_parameters.long_factor",)),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            ("'quantization_config' says that weights are quantised", "they were made from"),
        ),
        ({"is_encoder_decoder": True}, ("'is_encoder_decoder' is True",)),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else None,
)
def test_what_a_configuration_says_beyond_a_file_is_refused_by_its_key(
    changes, words, checkpoint, refused, edit_json
):
    directory = checkpoint()
    edit_json(directory / "config.json", lambda config: config.update(changes))
    refused(directory, str(directory / "config.json"), *words)


def test_a_text_model_of_another_kind_is_refused_inside_a_known_whole(
    checkpoint, refused, edit_json
):
    directory = checkpoint()

    def wrap(config):
        text = {**config, "model_type": "qwen3_next"}
        config.clear()
        config.update(model_type="qwen3_5", text_config=text)

    edit_json(directory / "config.json", wrap)
    refused(directory, "key 'text_config.model_type' is 'qwen3_next'", "'qwen3_5_text'")


def test_an_output_matrix_that_is_said_to_repeat_the_embedding_must_do_so(
    checkpoint, refused, edit_tensors
):
    directory = checkpoint(tie_word_embeddings=True)

    def differ(tensors):
        head = tensors["model.embed_tokens.weight"].clone()
        head[-1, -1] += 1
        tensors["lm_head.weight"] = head

    edit_tensors(directory, differ)
    words = ("'lm_head.weight' differs from 'model.embed_tokens.weight'", "'tie_word_embeddings'")
    refused(directory, *words)


def test_an_output_matrix_is_kept_where_a_whole_and_its_text_model_disagree(
    checkpoint, converted, edit_tensors, edit_json
):
    """Which setting counts depends on how the model is loaded; the matrix is right either way."""
    directory = checkpoint(tie_word_embeddings=True)
    edit_tensors(
        directory, lambda tensors: tensors.update({"lm_head.weight": torch.full((320, 64), 0.5)})
    )

    def wrap(config):
        text = dict(config)
        config.clear()
        config.update(model_type="qwen3_5", text_config=text, tie_word_embeddings=False)

    edit_json(directory / "config.json", wrap)
    with GGUFFile.open(converted(directory).path) as file:
        assert (file.inventory.bytes("output.weight").view("<f4") == 0.5).all()


def test_a_model_that_two_families_claim_is_refused(checkpoint, tmp_path):
    other = type("Other", (Qwen35,), {"name": "other"})()
    with pytest.raises(ConversionError, match="both qwen35 and other claim"):
        convert(checkpoint(), tmp_path / "m.gguf", outtype="f32", families=[Qwen35(), other])


def stumbling(name, error):
    """A family that raises at every checkpoint."""

    def convert(self, checkpoint):
        raise error

    return type("Stumbling", (Qwen35,), {"name": name, "convert": convert})()


@pytest.mark.parametrize(
    "error", [PluginError("Family.convert failed"), ConversionError("key 'x' is missing")]
)
def test_a_family_that_stumbles_over_anothers_model_is_left_out(
    checkpoint, tmp_path, caplog, error
):
    families = [stumbling("a", error), Qwen35(), stumbling("z", error)]
    done = convert(checkpoint(), tmp_path / "m.gguf", outtype="f32", families=families)
    assert done.family == "qwen35"
    assert [record.message for record in caplog.records] == [f"{error}; it is left out"] * 2


def test_what_families_say_against_a_model_is_told_where_nobody_knows_it(checkpoint, tmp_path):
    refuses = stumbling("a", ConversionError("key 'x' is 7"))
    others = [refuses, stumbling("b", PluginError("Family.convert failed"))]

    def said(*families):
        with pytest.raises(KinfolkError) as caught:
            convert(checkpoint(), tmp_path / "m.gguf", outtype="f32", families=families)
        return str(caught.value)

    assert said(*others) == "key 'x' is 7"
    assert said(refuses, *others) == "key 'x' is 7; key 'x' is 7"
    assert said(others[1]) == "Family.convert failed"
    nobody = stumbling("c", PluginError("Family.convert failed"))
    assert "no installed family converts models of type" in said(others[1], nobody)


def test_a_transform_that_gives_another_shape_is_named_with_its_tensor(checkpoint, tmp_path):
    def convert_wrongly(self, checkpoint):
        found = Qwen35.convert(self, checkpoint)
        first, *rest = found.tensors
        turned = replace(first, transform=Transform(lambda array: array[:1]))
        return replace(found, tensors=(turned, *rest))

    family = type("Wrong", (Qwen35,), {"convert": convert_wrongly})()
    with pytest.raises(PluginError, match=r"family 'qwen35': Transform.apply of '.+' returned \[1"):
        convert(checkpoint(), tmp_path / "m.gguf", outtype="f32", families=[family])
    assert [path.name for path in tmp_path.glob("*.gguf*")] == []


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
