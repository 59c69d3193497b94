"""The predicted sizes equal those that loading takes."""

from __future__ import annotations

import pytest
import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.bundled import bundled_model
from kinfolk.gguf.file import GGUFFile
from kinfolk.quant.formats import QuantFormats
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.weights.loader import load_weights
from kinfolk.weights.size import weight_bytes


@pytest.fixture(scope="module")
def registry():
    return Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())


@pytest.mark.parametrize("form", ["packed", "blocks", "dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["bundled", "qwen35moe", "gemma4"])
def test_weights_take_the_bytes_that_were_foretold(registry, cases, name, dtype, form):
    path = bundled_model(registry) if name == "bundled" else cases / f"{name}.gguf"
    formats = QuantFormats([provided.value for provided in registry.quant_formats])
    with GGUFFile.open(path, formats.tensor_types()) as file:
        family = registry.family_for(file.metadata.architecture)
        plan = family.weight_plan(family.read_config(file.metadata), file.inventory)
        foretold = weight_bytes(plan, file.inventory, formats, dtype=dtype, form=form)
        loaded = load_weights(
            plan,
            file.inventory,
            formats,
            dtype=dtype,
            keep_quantised=form == "blocks",
            activations="int8" if form == "packed" else None,
        )
        assert foretold == loaded.nbytes
