"""Random Hugging Face models, to convert and to compare logits with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kinfolk.convert.dense import DenseShape, Stretch
from kinfolk.descriptors import VocabularyOutline
from kinfolk.synth.vocabulary import tokenizer_keys
from kinfolk.text.formats import PreTokenizer
from kinfolk.text.vocabulary import MERGES, TOKENS


def dense_options(shape: DenseShape) -> dict[str, Any]:
    """The shape as arguments of a ``transformers`` configuration."""
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.epsilon,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": {**_rope_type(shape.stretch), "rope_theta": shape.rope_base},
    }


def _rope_type(stretch: Stretch | None) -> dict[str, Any]:
    if stretch is None:
        return {"rope_type": "default"}
    return {
        "rope_type": "llama3",
        "factor": stretch.factor,
        "low_freq_factor": stretch.low,
        "high_freq_factor": stretch.high,
        "original_max_position_embeddings": stretch.context,
    }


def save_random(
    model: Any, directory: Path, adjust: Callable[[str, torch.Tensor], object] | None = None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Give a ``transformers`` model random weights and save it. Returns a function from tokens
    int64 [n] to its logits float32 [n, vocabulary].

    Random matrices preserve the length of vectors. Vectors vary about their initial value, as one
    of 0 or 1 would hide mistakes. ``adjust`` is then called with the name of every parameter and
    buffer and may change it in place.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = model.float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.add_(noise * 0.3)
            else:
                weight.copy_(noise * weight.shape[-1] ** -0.5)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if adjust is not None:
                adjust(name, tensor)
    model.save_pretrained(directory)
    return lambda tokens: model(tokens[None]).logits[0]


def save_tokenizer(vocabulary: VocabularyOutline, pre: PreTokenizer, directory: Path) -> None:
    """Save a byte-level vocabulary as the tokenizer files of a Hugging Face model.

    ``pre`` is the pre-tokenizer whose id the vocabulary states.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    keys: Mapping[str, Any] = tokenizer_keys(vocabulary)
    ids = {text: index for index, text in enumerate(keys[TOKENS])}
    merges = [tuple(merge.split(" ")) for merge in keys[MERGES]]
    specials = [AddedToken(text, special=control) for text, control in vocabulary.specials]
    tokenizer = Tokenizer(models.BPE(ids, merges))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(specials)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": vocabulary.eos, "pad_token": vocabulary.padding}
    if vocabulary.chat_template:
        settings["chat_template"] = vocabulary.chat_template
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
