"""The qwen3 family: dense decoders that normalise the heads of queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfolk import hookimpl
from kinfolk.descriptors import ChatFormat, Family, FamilyBase, ModelCard, PreTokenizer, TinyModel
from kinfolk.nn.dense.config import DenseConfig, read_dense
from kinfolk.nn.dense.state import DenseHooks
from kinfolk.nn.dense.weights import dense_weights
from kinfolk.plans import WeightPlan
from kinfolk_qwen3.text import CARDS, CHAT, PRETOKENIZERS

if TYPE_CHECKING:
    from kinfolk.convert.checkpoint import Checkpoint
    from kinfolk.convert.plan import Conversion
    from kinfolk.gguf.inventory import Inventory
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.nn.context import BuildContext
    from kinfolk.nn.decoder import Decoder
    from kinfolk.weights.loader import Weights

KINFOLK_API = (1, 0)


class Qwen3(FamilyBase):
    """Qwen3, dense sizes."""

    name = "qwen3"
    architectures: tuple[str, ...] = ("qwen3",)

    def read_config(self, meta: Metadata) -> DenseConfig:
        return DenseConfig(**read_dense(meta))

    def weight_plan(self, config: DenseConfig, inventory: Inventory) -> WeightPlan:
        return WeightPlan(tuple(dense_weights(config, inventory, head_norms=True)))

    def build(self, config: DenseConfig, weights: Weights, context: BuildContext) -> Decoder:
        from kinfolk_qwen3.model import build

        return build(config, weights, context)

    def hooks(self, config: DenseConfig) -> DenseHooks:
        return DenseHooks()

    def chat(self, meta: Metadata) -> ChatFormat:
        return CHAT

    def pretokenizers(self) -> tuple[PreTokenizer, ...]:
        return PRETOKENIZERS

    def model_cards(self) -> tuple[ModelCard, ...]:
        return CARDS

    def convert(self, checkpoint: Checkpoint) -> Conversion | None:
        from kinfolk_qwen3.convert import conversion

        return conversion(checkpoint)

    def tiny(self) -> TinyModel:
        from kinfolk_qwen3.tiny import tiny

        return tiny()


@hookimpl
def register_families() -> list[Family]:
    return [Qwen3()]
