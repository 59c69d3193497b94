"""The qwen35moe family: hybrid decoders of gated delta nets and full attention, with experts."""

from __future__ import annotations

from kinfolk.descriptors import FamilyBase


class Qwen35Moe(FamilyBase):
    """Qwen3.5 and its successors of the same graph, sizes with experts."""

    name = "qwen35moe"
    architectures: tuple[str, ...] = ("qwen35moe",)

    config = "kinfolk_qwen35moe.config:read_config"
    weights = "kinfolk_qwen35moe.weights:weight_plan"
    model = "kinfolk_qwen35moe.model:build"
    model_hooks = "kinfolk_qwen35moe.hooks:Qwen35MoeHooks"
    chat_format = "kinfolk_qwen35moe.text:CHAT"
    pre_tokenizers = "kinfolk_qwen35moe.text:PRETOKENIZERS"
    released = "kinfolk_qwen35moe.shapes:shapes"
    cards = "kinfolk_qwen35moe.cards:CARDS"
    conversion = "kinfolk_qwen35moe.convert:conversion"
    tiny_model = "kinfolk_qwen35moe.tiny:tiny"
