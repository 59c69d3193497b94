"""A tiny model and its assistant, of transformers and as the files that they are converted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
)

from kinfolk.convert.driver import convert, convert_drafter
from kinfolk.convert.find import DrafterConverter
from kinfolk.descriptors import Family
from kinfolk.engine.loading import LoadedModel
from kinfolk.testing.checkpoints import save_random
from kinfolk.testing.model_files import write_f32
from kinfolk_gemma4.assistant import tiny
from kinfolk_gemma4.assistant.layout import AssistantShape
from kinfolk_gemma4.plugin import register_drafters
from kinfolk_gemma4.tiny import SHAPE as TARGET
from kinfolk_gemma4.tiny import random_checkpoint
from kinfolk_gemma4.tiny import tiny as tiny_target


@dataclass
class Pair:
    """A target and its assistant. ``directory`` is the assistant's checkpoint."""

    target: Any
    assistant: Any
    directory: Path
    target_file: Path
    file: Path
    load: Callable[..., LoadedModel]

    def loaded(self, **settings: Any) -> LoadedModel:
        options = {"draft_model": self.file, "draft_tokens": 4, **settings}
        return self.load(self.target_file, **options)


@pytest.fixture(scope="session")
def with_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of the family with a vocabulary."""
    return write_f32(tiny_target().shape, tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def convert_assistant(with_tokens: Path, families: list[Family]) -> Callable[[Path, Path], Any]:
    """``convert_assistant(directory, path)``: convert an assistant for the tiny model."""
    (spec,) = register_drafters()

    def run(directory: Path, path: Path) -> Any:
        return convert_drafter(
            directory,
            path,
            outtype="f32",
            target=with_tokens,
            drafters=[DrafterConverter(spec, "the plugin")],
            families=families,
            overwrite=True,
        )

    return run


@pytest.fixture(scope="session", params=["dense", "clustered"])
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    families: list[Family],
    load: Callable[..., LoadedModel],
    convert_assistant: Callable[[Path, Path], Any],
) -> Pair:
    """Heads with clusters of tokens and without."""
    folder = tmp_path_factory.mktemp(request.param)
    random_checkpoint(folder / "target")
    target = Gemma4ForCausalLM.from_pretrained(folder / "target").eval()
    convert(
        folder / "target", folder / "model.gguf", outtype="f32", families=families, tokenizer=False
    )
    shape = tiny.SHAPE if request.param == "clustered" else replace(tiny.SHAPE, centroids=0)
    assistant = random_assistant(folder / "assistant", shape)
    convert_assistant(folder / "assistant", folder / "draft.gguf")
    return Pair(
        target,
        assistant,
        folder / "assistant",
        folder / "model.gguf",
        folder / "draft.gguf",
        load,
    )


def random_assistant(directory: Path, shape: AssistantShape) -> Any:
    """Save a random assistant of a shape."""
    inner = shape.inner
    text = Gemma4TextConfig(
        vocab_size=inner.vocabulary,
        vocab_size_per_layer_input=0,
        hidden_size=inner.hidden,
        intermediate_size=inner.feed_forward,
        num_hidden_layers=inner.layers,
        num_kv_shared_layers=inner.layers,
        num_attention_heads=inner.heads,
        num_key_value_heads=inner.local.kv_heads,
        num_global_key_value_heads=inner.full.kv_heads,
        head_dim=inner.local.head_dim,
        global_head_dim=inner.full.head_dim,
        hidden_size_per_layer_input=0,
        attention_k_eq_v=inner.keys_as_values,
        sliding_window=inner.window,
        max_position_embeddings=inner.context,
        layer_types=["sliding_attention" if flag else "full_attention" for flag in inner.windowed],
        final_logit_softcapping=inner.softcap,
    )
    config = Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=TARGET.hidden,
        use_ordered_embeddings=bool(shape.centroids),
        num_centroids=shape.centroids or 1,
        centroid_intermediate_top_k=shape.best_clusters,
    )
    model = Gemma4AssistantForCausalLM(config)

    def adjust(name: str, weight: torch.Tensor) -> None:
        if name.endswith("token_ordering"):
            generator = torch.Generator().manual_seed(1)
            weight.copy_(torch.randperm(len(weight), generator=generator))
        elif name.endswith("layer_scalar"):
            weight.fill_(0.8)

    save_random(model, directory, adjust)
    return model.eval()
