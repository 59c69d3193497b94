"""The gemma4 family: windowed and full attention, with or without experts."""

from __future__ import annotations

from kinfolk.descriptors import FamilyBase


class Gemma4(FamilyBase):
    """Gemma 4, all sizes, text only."""

    name = "gemma4"
    architectures: tuple[str, ...] = ("gemma4",)

    config = "kinfolk_gemma4.config:read_config"
    weights = "kinfolk_gemma4.weights:weight_plan"
    model = "kinfolk_gemma4.model:build"
    model_hooks = "kinfolk_gemma4.hooks:Gemma4Hooks"
    chat_format = "kinfolk_gemma4.text:CHAT"
    pre_tokenizers = "kinfolk_gemma4.text:PRETOKENIZERS"
    released = "kinfolk_gemma4.shapes:shapes"
    cards = "kinfolk_gemma4.cards:CARDS"
    conversion = "kinfolk_gemma4.convert:conversion"
    tiny_model = "kinfolk_gemma4.tiny:tiny"
