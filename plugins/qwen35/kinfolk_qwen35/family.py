"""The qwen35 family: dense hybrid decoders of gated delta nets and full attention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.descriptors import ChatFormat, FamilyBase, ModelCard, PreTokenizer, ReleasedShape
from kinfolk.plans import WeightPlan
from kinfolk_qwen35.text import CHAT, PRETOKENIZERS

if TYPE_CHECKING:
    from kinfolk.convert.checkpoint import HFCheckpoint
    from kinfolk.convert.plan import Conversion
    from kinfolk.descriptors import ReleasedShape, TinyModel
    from kinfolk.gguf.inventory import Inventory
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.nn.context import BuildContext
    from kinfolk.nn.decoder import Decoder
    from kinfolk.weights.loader import Weights
    from kinfolk_qwen35.config import Qwen35Config
    from kinfolk_qwen35.hooks import Qwen35Hooks


POCKET = Path(__file__).parent / "pocket" / "pocket.gguf"


class Qwen35(FamilyBase):
    """Qwen3.5 and its successors of the same graph, dense sizes."""

    name = "qwen35"
    architectures: tuple[str, ...] = ("qwen35",)

    def read_config(self, meta: Metadata) -> Qwen35Config:
        from kinfolk_qwen35.config import read_config

        return read_config(meta)

    def weight_plan(self, config: Qwen35Config, inventory: Inventory) -> WeightPlan:
        from kinfolk.nn.feed_forward import mlp_weights
        from kinfolk.nn.hybrid.weights import ignored_tensors, trunk_weights

        weights = list(trunk_weights(config, inventory))
        for layer in range(config.layers):
            weights += mlp_weights(layer, config.width, config.feed_forward)
        return WeightPlan(tuple(weights), ignored_tensors(config, inventory))

    def build(self, config: Qwen35Config, weights: Weights, context: BuildContext) -> Decoder:
        from kinfolk_qwen35.model import build

        return build(config, weights, context)

    def hooks(self, config: Qwen35Config) -> Qwen35Hooks:
        from kinfolk_qwen35.hooks import Qwen35Hooks

        return Qwen35Hooks()

    def pretokenizers(self) -> tuple[PreTokenizer, ...]:
        return PRETOKENIZERS

    def chat(self, meta: Metadata) -> ChatFormat:
        return CHAT

    def model_cards(self) -> tuple[ModelCard, ...]:
        from kinfolk_qwen35.cards import CARDS

        return CARDS

    def convert(self, checkpoint: HFCheckpoint) -> Conversion | None:
        from kinfolk_qwen35.convert import conversion

        return conversion(checkpoint)

    def shapes(self) -> tuple[ReleasedShape, ...]:
        from kinfolk_qwen35.shapes import shapes

        return shapes()

    def tiny(self) -> TinyModel:
        from kinfolk_qwen35.tiny import tiny

        return tiny()

    def bundled_model(self) -> Path | None:
        return POCKET if POCKET.is_file() else None
