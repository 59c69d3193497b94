"""Plans the training of a block for multi-token prediction for a target. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from kinfolk.config import ModelConfig
from kinfolk.descriptors import resolve
from kinfolk.errors import UnsupportedModelError
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.values import Value
from kinfolk.spec.mtp.block import MTPBlock
from kinfolk.spec.mtp.prepare import BLOCK_COUNT, PASSES, nextn_weights
from kinfolk.train.kinds import TargetFile
from kinfolk.train.mtp.keys import with_block
from kinfolk.train.mtp.shape import BlockShape
from kinfolk.train.options import TrainOptions, usual_gamma

if TYPE_CHECKING:
    from kinfolk.train.mtp.drafter import TrainedMTP
    from kinfolk.train.target import FrozenTarget

_OF_OTHER_KINDS: Final = (
    "layers", "window", "heads", "kv_heads", "head_dim", "feed_forward", "feature_layers",
    "mask_token",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MTPPlan:
    """See :class:`kinfolk.train.kinds.TrainingPlan`. ``keys`` are all keys of the file with the
    block."""

    shape: BlockShape
    keys: Mapping[str, Value]
    alone: bool = False

    feature_layers: ClassVar[tuple[int, ...]] = ()
    final: ClassVar[bool] = True

    @property
    def block(self) -> int:
        return self.shape.block

    def build(self, target: FrozenTarget, options: TrainOptions) -> TrainedMTP:
        from kinfolk.train.mtp.drafter import TrainedMTP

        return TrainedMTP(self.shape, target, self.keys, anchors=options.anchors, seed=options.seed)

    def usage(self, out: Path) -> str:
        return f"--draft mtp --draft-model {out}" if self.alone else f"-m {out} --draft mtp"


def plan_training(target: TargetFile, options: TrainOptions) -> MTPPlan:
    """Raises :class:`SettingsError` with the option at fault, and :class:`UnsupportedModelError`
    for a target that can have no block, or has one."""
    options.refuse(_OF_OTHER_KINDS, "the block has the shape of the model's own layers")
    file, config = target.file, target.config
    meta = file.metadata
    block: MTPBlock | None = resolve(config.mtp_block) if config.mtp_block else None
    if block is None or block.trained is None:
        raise UnsupportedModelError(
            f"{meta.path}: family {target.family.name!r} has no block for multi-token prediction "
            "that can be trained; --kind dflash trains a drafter for any family"
        )
    key = meta.arch_key(BLOCK_COUNT)
    if meta.integer(key, default=0, minimum=0):
        raise meta.unsupported(
            f"key {key!r} says that the file has a block for multi-token prediction, and one file "
            "can have one; train for the file without it"
        )
    layer = block.trained(config)
    keys = with_block(meta, config.layers, layer.like)
    extended: ModelConfig = target.family.read_config(Metadata.from_dict(keys, meta.path))
    weights = [*block.weights(extended, file.inventory), *nextn_weights(extended, file.inventory)]
    rows = options.block or PASSES + 1
    shape = BlockShape(
        config=extended,
        layer=layer,
        tensors={spec.name: spec.shape for spec in weights},
        block=rows,
        gamma=options.gamma or usual_gamma(rows),
    )
    return MTPPlan(shape, keys, options.alone)
