"""The general metadata of a file: name, size, author, sampling."""

from __future__ import annotations

import json

import pytest

from kinfolk.convert.general import ParameterCount, general_keys
from kinfolk.errors import ConversionError
from kinfolk.gguf.metadata import Metadata

CARD = """---
license: apache-2.0
language:
- en
base_model:
- someone/Base-Model
---
# Tiny
"""

TENSORS = (("output.weight", (1000, 12_345)), ("output_norm.weight", (678,)))


@pytest.fixture
def keys(tmp_path):
    """``keys(directory_name, files, **options)``: the general keys of such a directory."""

    def make(directory_name: str, files: dict[str, str], tensors=TENSORS, **options) -> Metadata:
        directory = tmp_path / directory_name
        directory.mkdir()
        for file, text in files.items():
            (directory / file).write_text(text)
        count = ParameterCount.of(tensors)
        return Metadata.from_dict(general_keys("arch", directory, count, **options))

    return make


def test_the_directory_names_the_model(keys):
    found = keys("Tiny-Chat-12M", {})
    assert found.string("general.architecture") == "arch"
    assert found.string("general.type") == "model"
    assert found.string("general.name") == "Tiny Chat 12M"
    assert found.string("general.size_label") == "12M"


def test_the_label_of_a_mixture_counts_one_expert_of_each_layer(keys):
    """As in llama.cpp's converter: the number of experts, times the parameters with one of them."""
    stacks = [(f"blk.{n}.ffn_up_exps.weight", (64, 1000, 500)) for n in range(2)]
    found = keys("Tiny", {}, (*TENSORS, *stacks))
    assert found.string("general.size_label") == "64x13M"


def test_a_name_can_be_given(keys):
    assert keys("Tiny", {}, name="Another").string("general.name") == "Another"


def test_the_model_card_is_read(keys):
    found = keys("Tiny", {"README.md": CARD})
    assert found.string("general.license") == "apache-2.0"
    assert list(found.strings("general.languages")) == ["en"]
    assert found.string("general.base_model.0.name") == "Base Model"


def test_sampling_defaults_are_handed_on(keys):
    settings = {"temperature": 1, "top_p": 0.95, "top_k": 20, "eos_token_id": [1, 2]}
    found = keys("Tiny", {"generation_config.json": json.dumps(settings)})
    assert found.value("general.sampling.temp").describe() == "f32"
    assert found.number("general.sampling.temp") == 1.0
    assert found.number("general.sampling.top_p") == pytest.approx(0.95)
    assert found.value("general.sampling.top_k").describe() == "i32"


def test_a_card_in_disorder_is_named(keys):
    with pytest.raises(ConversionError, match=r"Broken: the head of README\.md .* cannot be used"):
        keys("Broken", {"README.md": "---\nlicense: [apache\n---\n"})
