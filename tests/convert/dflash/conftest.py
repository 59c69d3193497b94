"""DFlash checkpoints in the spellings of configurations, and their conversion."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_bench import vocabulary, write_file
from dflash_reference import Shape, random_tensors
from safetensors.torch import save_file

from kinfolk.convert.driver import Converted, convert_drafter
from kinfolk.convert.find import DrafterConverter
from kinfolk.descriptors import DrafterSpec

SPEC = DrafterSpec(
    "dflash",
    architectures=("dflash",),
    prepare="kinfolk.spec.dflash.prepare:prepare",
    build="kinfolk.spec.dflash.model:build",
    convert="kinfolk.convert.dflash.conversion:convert",
)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """``save(config, tensors)``: a checkpoint directory."""

    def write(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
        directory = tmp_path / "Some-Drafter"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config))
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, directory / "model.safetensors")
        return directory

    return write


@pytest.fixture
def target_file(tmp_path: Path) -> Callable[[Shape], Path]:
    """A model file that has nothing but the vocabulary of a shape."""

    def write(shape: Shape) -> Path:
        keys = {
            "general.architecture": "some",
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": vocabulary(shape),
            "tokenizer.ggml.eos_token_id": 7,
            "tokenizer.chat_template": "{{ messages }}",
        }
        return write_file(tmp_path / "target.gguf", keys, {"x": np.zeros((1, 1))})

    return write


@pytest.fixture
def converted(tmp_path: Path, target_file: Callable[[Shape], Path]) -> Callable[..., Converted]:
    """``converted(directory, shape)``: convert for the target with the vocabulary of the shape."""

    def run(directory: Path, shape: Shape, outtype: str = "f32", **options: Any) -> Converted:
        options = {"target": target_file(shape), "families": [], **options}
        return convert_drafter(
            directory,
            tmp_path / "draft.gguf",
            outtype=outtype,
            drafters=[DrafterConverter(SPEC, "the core")],
            overwrite=True,
            **options,
        )

    return run


@pytest.fixture
def tensors() -> Callable[[Shape], dict[str, torch.Tensor]]:
    return random_tensors
