"""The laguna family: mixtures of experts with gated attention, full and windowed."""

from __future__ import annotations

from kinfolk.descriptors import FamilyBase


class Laguna(FamilyBase):
    """Laguna XS, S and M."""

    name = "laguna"
    architectures: tuple[str, ...] = ("laguna",)

    config = "kinfolk_laguna.config:read_config"
    weights = "kinfolk_laguna.weights:weight_plan"
    model = "kinfolk_laguna.model:build"
    model_hooks = "kinfolk_laguna.hooks:LagunaHooks"
    chat_format = "kinfolk_laguna.text:CHAT"
    pre_tokenizers = "kinfolk_laguna.text:PRETOKENIZERS"
    released = "kinfolk_laguna.shapes:shapes"
    cards = "kinfolk_laguna.cards:CARDS"
    conversion = "kinfolk_laguna.convert:conversion"
    tiny_model = "kinfolk_laguna.tiny:tiny"
