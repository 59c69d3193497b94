"""The qwen35 family: dense hybrid decoders of gated delta nets and full attention."""

from __future__ import annotations

from pathlib import Path

from kinfolk.descriptors import FamilyBase

POCKET = Path(__file__).parent / "pocket" / "pocket.gguf"


class Qwen35(FamilyBase):
    """Qwen3.5 and its successors of the same graph, dense sizes."""

    name = "qwen35"
    architectures: tuple[str, ...] = ("qwen35",)

    config = "kinfolk_qwen35.config:read_config"
    weights = "kinfolk_qwen35.weights:weight_plan"
    model = "kinfolk_qwen35.model:build"
    model_hooks = "kinfolk_qwen35.hooks:Qwen35Hooks"
    chat_format = "kinfolk_qwen35.text:CHAT"
    pre_tokenizers = "kinfolk_qwen35.text:PRETOKENIZERS"
    released = "kinfolk_qwen35.shapes:shapes"
    cards = "kinfolk_qwen35.cards:CARDS"
    conversion = "kinfolk_qwen35.convert:conversion"
    tiny_model = "kinfolk_qwen35.tiny:tiny"

    def bundled_model(self) -> Path | None:
        return POCKET if POCKET.is_file() else None
