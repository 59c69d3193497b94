"""Random models of transformers, converted and run: the logits are the same."""

from __future__ import annotations

import pytest
import torch
from kinfolk_qwen3.tiny import random_checkpoint

from kinfolk.convert.driver import convert
from kinfolk.engine.loading import load_model
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.testing.driver import Driver
from kinfolk.testing.kit import assert_same

VARIANTS = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "a key head for every query head": {"num_key_value_heads": 4},
    "one key head for all, wide heads": {"num_key_value_heads": 1, "head_dim": 64},
}
LENGTHS = (1, 63, 64, 65, 127, 128, 129)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant, tmp_path):
    model = random_checkpoint(tmp_path / "hf", **VARIANTS[variant])
    registry = Registry.discover(load_settings())
    families = [provided.value for provided in registry.families.values()]
    path = tmp_path / "model.gguf"
    convert(tmp_path / "hf", path, outtype="f32", families=families, tokenizer=False)
    drive = Driver(load_model(path, load_settings(device="cpu", dtype="f32"), registry))
    for length in LENGTHS:
        tokens = torch.randint(0, 320, (length,), generator=torch.Generator().manual_seed(length))
        with torch.inference_mode():
            expected = model(tokens)
        whole, sliced = drive.open(), drive.open()
        assert_same(drive.feed({whole: tokens.tolist()})[whole], expected)
        assert_same(drive.feed({sliced: tokens.tolist()}, rows=50)[sliced], expected)
        drive.kv_cache.tables.release(whole)
        drive.kv_cache.tables.release(sliced)


def test_a_sliding_window_is_refused(tmp_path):
    random_checkpoint(tmp_path / "hf", use_sliding_window=True)
    registry = Registry.discover(load_settings())
    families = [provided.value for provided in registry.families.values()]
    with pytest.raises(Exception, match="'use_sliding_window' is True"):
        convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32", families=families)
