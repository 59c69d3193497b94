"""The qwen3 family: dense decoders that normalise the heads of queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfolk import hookimpl
from kinfolk.descriptors import Family, FamilyBase
from kinfolk.nn.dense.config import DenseConfig, read_dense
from kinfolk.nn.dense.weights import dense_weights
from kinfolk.plans import WeightPlan

if TYPE_CHECKING:
    from kinfolk.gguf.inventory import Inventory
    from kinfolk.gguf.metadata import Metadata

KINFOLK_API = (1, 0)


class Qwen3(FamilyBase):
    """Qwen3, dense sizes."""

    name = "qwen3"
    architectures: tuple[str, ...] = ("qwen3",)

    model = "kinfolk_qwen3.model:build"
    model_hooks = "kinfolk.nn.dense.state:DenseHooks"
    chat_format = "kinfolk_qwen3.text:CHAT"
    pre_tokenizers = "kinfolk_qwen3.text:PRETOKENIZERS"
    cards = "kinfolk_qwen3.text:CARDS"
    conversion = "kinfolk_qwen3.convert:conversion"
    tiny_model = "kinfolk_qwen3.tiny:tiny"

    def read_config(self, meta: Metadata) -> DenseConfig:
        return DenseConfig(**read_dense(meta))

    def weight_plan(self, config: DenseConfig, inventory: Inventory) -> WeightPlan:
        return WeightPlan(tuple(dense_weights(config, inventory, head_norms=True)))


@hookimpl
def register_families() -> list[Family]:
    return [Qwen3()]
