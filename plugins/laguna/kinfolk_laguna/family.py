"""The laguna family: mixtures of experts with gated attention, full and windowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfolk.descriptors import ChatFormat, FamilyBase, ModelCard, PreTokenizer, ReleasedShape
from kinfolk_laguna.text import CHAT, PRETOKENIZERS

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
    from kinfolk_laguna.config import LagunaConfig
    from kinfolk_laguna.hooks import LagunaHooks


class Laguna(FamilyBase):
    """Laguna XS, S and M."""

    name = "laguna"
    architectures: tuple[str, ...] = ("laguna",)

    def read_config(self, meta: Metadata) -> LagunaConfig:
        from kinfolk_laguna.config import read_config

        return read_config(meta)

    def weight_plan(self, config: LagunaConfig, inventory: Inventory) -> WeightPlan:
        from kinfolk_laguna.weights import weight_plan

        return weight_plan(config, inventory)

    def build(self, config: LagunaConfig, weights: Weights, context: BuildContext) -> Decoder:
        from kinfolk_laguna.model import build

        return build(config, weights, context)

    def hooks(self, config: LagunaConfig) -> LagunaHooks:
        from kinfolk_laguna.hooks import LagunaHooks

        return LagunaHooks()

    def pretokenizers(self) -> tuple[PreTokenizer, ...]:
        return PRETOKENIZERS

    def chat(self, meta: Metadata) -> ChatFormat:
        return CHAT

    def model_cards(self) -> tuple[ModelCard, ...]:
        from kinfolk_laguna.cards import CARDS

        return CARDS

    def convert(self, checkpoint: HFCheckpoint) -> Conversion | None:
        from kinfolk_laguna.convert import conversion

        return conversion(checkpoint)

    def shapes(self) -> tuple[ReleasedShape, ...]:
        from kinfolk_laguna.shapes import shapes

        return shapes()

    def tiny(self) -> TinyModel:
        from kinfolk_laguna.tiny import tiny

        return tiny()
