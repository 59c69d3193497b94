"""From a Hugging Face checkpoint of a dense model to a GGUF file."""

from __future__ import annotations

from typing import Final

from kinfolk.convert.checkpoint import Checkpoint, Config
from kinfolk.convert.hybrid.keys import metadata
from kinfolk.convert.hybrid.shape import draft_layers_of, read_shape
from kinfolk.convert.hybrid.tensors import DECAY_TYPES, dense_feed_forward, tensors
from kinfolk.convert.plan import Conversion
from kinfolk.convert.tokenizer import byte_level
from kinfolk_qwen35.text import PRETOKENIZERS

ARCHITECTURE: Final = "qwen35"
MODEL_TYPES: Final = ("qwen3_5", "qwen3_5_text")
"""Of the multimodal wrapper, and of its text model alone."""

_TIED: Final = "tie_word_embeddings"
_HEAD: Final = "lm_head.weight"
_VISION: Final = "the vision tower is a file of its own"


def conversion(checkpoint: Checkpoint) -> Conversion | None:
    """The conversion of a checkpoint of this family, ``None`` for any other."""
    config = checkpoint.config
    if config.text("model_type", "") not in MODEL_TYPES:
        return None
    text = config.section("text_config") if "text_config" in config else config
    names = [source_name(name) for name in checkpoint.tensors]
    tied = _tied(text, config, _HEAD in names)
    shape = read_shape(text, draft_layers=draft_layers_of(names), tied=tied)
    width = text.integer("intermediate_size")
    dropped = {"model.visual.": _VISION, "visual.": _VISION}
    if tied:
        dropped[_HEAD] = "the output matrix is the embedding"
    return Conversion(
        architecture=ARCHITECTURE,
        metadata=metadata(shape, {"feed_forward_length": width}),
        tensors=tensors(shape, dense_feed_forward(shape.hidden, width)),
        vocabulary=shape.vocabulary,
        tokenizer=byte_level(shape.vocabulary, PRETOKENIZERS),
        dropped=dropped,
        source_name=source_name,
        group=shape.heads // shape.kv_heads,
        type_overrides=DECAY_TYPES,
    )


def source_name(name: str) -> str:
    """The name a tensor has in the text model alone."""
    name = name.replace("language_model.", "", 1)
    return name.removeprefix("model.") if name.startswith("model.mtp.") else name


def _tied(text: Config, wrapper: Config, has_head: bool) -> bool:
    """Whether the embedding is the output matrix; the text model's own word counts most."""
    stated = [part.flag(_TIED) for part in (text, wrapper) if _TIED in part]
    return stated[0] if has_head and stated else any(stated)
