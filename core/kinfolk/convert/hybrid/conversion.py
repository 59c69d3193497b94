"""The conversion of a hybrid checkpoint, but for its feed-forward part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from kinfolk.convert.checkpoint import Config, HFCheckpoint
from kinfolk.convert.config_keys import is_tied, text_model
from kinfolk.convert.hybrid.keys import metadata
from kinfolk.convert.hybrid.shape import draft_layers_of, read_shape
from kinfolk.convert.hybrid.tensors import DECAY_TYPES, FeedForward, tensors
from kinfolk.convert.plan import Conversion
from kinfolk.convert.tokenizer import byte_level
from kinfolk.text.formats import PreTokenizer

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_VISION: Final = "the vision tower is a file of its own"

FeedForwardReader = Callable[[Config, Collection[str]], tuple[FeedForward, Mapping[str, object]]]
"""From the text model's configuration and the names of its tensors to recipes and keys."""


def hybrid_conversion(
    checkpoint: HFCheckpoint,
    architecture: str,
    model_types: Collection[str],
    pretokenizers: Iterable[PreTokenizer],
    read_feed_forward: FeedForwardReader,
) -> Conversion | None:
    """The conversion, ``None`` for a checkpoint of none of the ``model_types``.

    Those are of the text model and of the multimodal wrapper around it.
    """
    config = checkpoint.config
    if config.text("model_type", "") not in model_types:
        return None
    text = text_model(config, model_types)
    names = {source_name(name) for name in checkpoint.tensors}
    tied = is_tied(text, config, has_head=_HEAD in names, default=False)
    shape = read_shape(text, draft_layers=draft_layers_of(names), tied=tied)
    feed_forward, keys = read_feed_forward(text, names)
    return Conversion(
        architecture=architecture,
        metadata=metadata(shape, keys),
        tensors=tensors(shape, feed_forward),
        vocabulary=shape.vocabulary,
        tokenizer=byte_level(shape.vocabulary, pretokenizers),
        dropped={"model.visual.": _VISION, "visual.": _VISION},
        repeated={_HEAD: _EMBEDDING} if tied else {},
        source_name=source_name,
        group=shape.heads // shape.kv_heads,
        type_overrides=DECAY_TYPES,
    )


def source_name(name: str) -> str:
    """The name a tensor has in the text model alone."""
    name = name.replace("language_model.", "", 1)
    return name.removeprefix("model.") if name.startswith("model.mtp.") else name
