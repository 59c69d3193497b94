"""The gemma4 family: windowed and full attention, dense or with experts beside the dense part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfolk.descriptors import FamilyBase
from kinfolk_gemma4.text import CHAT, PRETOKENIZERS

if TYPE_CHECKING:
    from kinfolk.convert.checkpoint import HFCheckpoint
    from kinfolk.convert.plan import Conversion
    from kinfolk.descriptors import (
        ChatFormat,
        ModelCard,
        PreTokenizer,
        ReleasedShape,
        TinyModel,
    )
    from kinfolk.gguf.inventory import Inventory
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.nn.context import BuildContext
    from kinfolk.nn.decoder import Decoder
    from kinfolk.plans import WeightPlan
    from kinfolk.weights.loader import Weights
    from kinfolk_gemma4.config import Gemma4Config
    from kinfolk_gemma4.hooks import Gemma4Hooks


class Gemma4(FamilyBase):
    """Gemma 4, all sizes, text only."""

    name = "gemma4"
    architectures: tuple[str, ...] = ("gemma4",)
    drafter_architectures: tuple[str, ...] = ("gemma4-assistant", "gemma4_assistant")

    def read_config(self, meta: Metadata) -> Gemma4Config:
        from kinfolk_gemma4.config import read_config

        return read_config(meta)

    def weight_plan(self, config: Gemma4Config, inventory: Inventory) -> WeightPlan:
        from kinfolk_gemma4.weights import weight_plan

        return weight_plan(config, inventory)

    def build(self, config: Gemma4Config, weights: Weights, context: BuildContext) -> Decoder:
        from kinfolk_gemma4.model import build

        return build(config, weights, context)

    def hooks(self, config: Gemma4Config) -> Gemma4Hooks:
        from kinfolk_gemma4.hooks import Gemma4Hooks

        return Gemma4Hooks()

    def pretokenizers(self) -> tuple[PreTokenizer, ...]:
        return PRETOKENIZERS

    def chat(self, meta: Metadata) -> ChatFormat:
        return CHAT

    def model_cards(self) -> tuple[ModelCard, ...]:
        from kinfolk_gemma4.cards import CARDS

        return CARDS

    def convert(self, checkpoint: HFCheckpoint) -> Conversion | None:
        from kinfolk_gemma4.convert import conversion

        return conversion(checkpoint)

    def shapes(self) -> tuple[ReleasedShape, ...]:
        from kinfolk_gemma4.shapes import shapes

        return shapes()

    def tiny(self) -> TinyModel:
        from kinfolk_gemma4.tiny import tiny

        return tiny()
