"""A block format of a plugin: written by convert, and run like any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinfolk.convert.driver import convert, outtypes
from kinfolk.convert.target import target_tokenizer
from kinfolk.descriptors import QuantFormat
from kinfolk.engine.runtime import Runtime
from kinfolk.errors import ModelFormatError
from kinfolk.gguf.file import GGUFFile
from kinfolk.loader import Provided
from kinfolk.registry import Registry
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.text.vocabulary import TOKENS

TYPE = 1001
FORMAT = QuantFormat(
    "PAIRS", TYPE, 32, 64, f"{__name__}:dequantize", quantize=f"{__name__}:quantize"
)
"""Blocks of 32 numbers of float16."""


def quantize(numbers):
    return numbers.astype("<f2").view(np.uint8)


def dequantize(data):
    return data.view("<f2").astype(np.float32)


@pytest.fixture(scope="module")
def registry():
    known = Registry.discover(load_settings())
    formats = (*known.quant_formats, Provided(FORMAT, "pairs", "plugin 'pairs'"))
    return replace(known, quant_formats=formats)


@pytest.fixture
def written(checkpoint, registry, tmp_path):
    """``written(outtype)``: the path of a converted random model."""
    folder = checkpoint()
    families = [provided.value for provided in registry.families.values()]

    def run(outtype):
        path = tmp_path / f"{outtype}.gguf"
        convert(folder, path, outtype=outtype, families=families, formats=registry.formats())
        return path

    return run


def tokens_of(path, registry):
    settings = load_settings(device="cpu", dtype="f32", context=128, slots=1, draft="off")
    with Runtime.open(path, settings, registry) as runtime:
        events = runtime.engine.submit(Request("r", (5, 9, 2, 7), 12))
        return [token for event in events for token in getattr(event, "tokens", ())]


def test_it_is_a_mix_of_its_own(registry):
    assert set(outtypes(registry.formats())) == {*outtypes(), "pairs"}


def test_a_file_of_it_is_read_and_run(written, registry):
    path, types = written("pairs"), registry.formats().tensor_types()
    with GGUFFile.open(path, types) as file, GGUFFile.open(written("f16")) as plain:
        assert file.metadata.integer("general.file_type") == 1024
        found = {name for name, info in file.inventory.items() if info.ggml_type == TYPE}
        assert {"token_embd.weight", "output.weight", "blk.3.attn_v.weight"} < found
        for name in found:
            assert bytes(file.inventory.bytes(name)) == bytes(plain.inventory.bytes(name))
    assert len(tokens_of(path, registry)) == 12


def test_without_the_plugin_the_type_is_named(written):
    with pytest.raises(ModelFormatError, match=f"unknown type {TYPE}"):
        tokens_of(written("pairs"), Registry.discover(load_settings()))


def test_a_drafter_of_a_model_in_it_gets_its_tokenizer(written, registry):
    families = [provided.value for provided in registry.families.values()]
    keys = target_tokenizer(written("pairs"), families, registry.formats())
    assert TOKENS in keys
