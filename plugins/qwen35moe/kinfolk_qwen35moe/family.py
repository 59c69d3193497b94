"""The qwen35moe family: hybrid decoders of gated delta nets and full attention, with experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfolk.descriptors import ChatFormat, FamilyBase, ModelCard, PreTokenizer, ReleasedShape
from kinfolk_qwen35moe.text import CHAT, PRETOKENIZERS

if TYPE_CHECKING:
    from kinfolk.convert.checkpoint import HFCheckpoint
    from kinfolk.convert.plan import Conversion
    from kinfolk.descriptors import TinyModel
    from kinfolk.gguf.inventory import Inventory
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.nn.context import BuildContext
    from kinfolk.nn.decoder import Decoder
    from kinfolk.plans import WeightPlan
    from kinfolk.weights.loader import Weights
    from kinfolk_qwen35moe.config import Qwen35MoeConfig
    from kinfolk_qwen35moe.hooks import Qwen35MoeHooks


class Qwen35Moe(FamilyBase):
    """Qwen3.5 and its successors of the same graph, sizes with experts."""

    name = "qwen35moe"
    architectures: tuple[str, ...] = ("qwen35moe",)

    def read_config(self, meta: Metadata) -> Qwen35MoeConfig:
        from kinfolk_qwen35moe.config import read_config

        return read_config(meta)

    def weight_plan(self, config: Qwen35MoeConfig, inventory: Inventory) -> WeightPlan:
        from kinfolk_qwen35moe.weights import weight_plan

        return weight_plan(config, inventory)

    def build(self, config: Qwen35MoeConfig, weights: Weights, context: BuildContext) -> Decoder:
        from kinfolk_qwen35moe.model import build

        return build(config, weights, context)

    def hooks(self, config: Qwen35MoeConfig) -> Qwen35MoeHooks:
        from kinfolk_qwen35moe.hooks import Qwen35MoeHooks

        return Qwen35MoeHooks()

    def pretokenizers(self) -> tuple[PreTokenizer, ...]:
        return PRETOKENIZERS

    def chat(self, meta: Metadata) -> ChatFormat:
        return CHAT

    def model_cards(self) -> tuple[ModelCard, ...]:
        from kinfolk_qwen35moe.cards import CARDS

        return CARDS

    def convert(self, checkpoint: HFCheckpoint) -> Conversion | None:
        from kinfolk_qwen35moe.convert import conversion

        return conversion(checkpoint)

    def shapes(self) -> tuple[ReleasedShape, ...]:
        from kinfolk_qwen35moe.shapes import shapes

        return shapes()

    def tiny(self) -> TinyModel:
        from kinfolk_qwen35moe.tiny import tiny

        return tiny()
