"""Plans the training of a DFlash drafter for a target. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kinfolk.errors import SettingsError
from kinfolk.text.vocabulary import TokenType, read_vocabulary
from kinfolk.train.dflash.shape import DrafterShape, choose_shape
from kinfolk.train.kinds import TargetFile
from kinfolk.train.options import TrainOptions

if TYPE_CHECKING:
    from kinfolk.train.dflash.drafter import TrainedDFlash
    from kinfolk.train.target import FrozenTarget

_BLOCK = 16
_MASK_KEY = "tokenizer.ggml.mask_token_id"


@dataclass(frozen=True, slots=True)
class DFlashPlan:
    """See :class:`kinfolk.train.kinds.TrainingPlan`."""

    shape: DrafterShape

    final: ClassVar[bool] = False

    @property
    def block(self) -> int:
        return self.shape.block

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self.shape.feature_layers

    def build(self, target: FrozenTarget, options: TrainOptions) -> TrainedDFlash:
        from kinfolk.train.dflash.drafter import TrainedDFlash

        return TrainedDFlash(self.shape, target, anchors=options.anchors, seed=options.seed)

    def usage(self, out: Path) -> str:
        return f"--draft-model {out}"


def plan_training(target: TargetFile, options: TrainOptions) -> DFlashPlan:
    """Raises :class:`SettingsError` with the option at fault."""
    options.refuse(("alone",), "its file never has the model in it")
    return DFlashPlan(
        choose_shape(
            target.config,
            mask_token=_mask_token(target, options.mask_token),
            vocabulary=target.config.vocabulary,
            block=options.block or _BLOCK,
            layers=options.layers,
            window=options.window,
            heads=options.heads,
            kv_heads=options.kv_heads,
            head_dim=options.head_dim,
            feed_forward=options.feed_forward,
            feature_layers=options.feature_layers,
            gamma=options.gamma,
        )
    )


def _mask_token(target: TargetFile, stated: int | None) -> int:
    """The token of rows to guess: what the file says, an unused one, or a control token."""
    meta = target.file.metadata
    vocabulary = read_vocabulary(meta, target.chat_format)
    count = len(vocabulary.texts)
    if stated is not None:
        if stated >= count:
            raise SettingsError(
                f"--mask-token {stated} is no token of {meta.path}, which has {count}"
            )
        return stated
    if _MASK_KEY in meta:
        return int(meta.integer(_MASK_KEY, minimum=0, maximum=count - 1))
    ends = {vocabulary.bos, vocabulary.eos, *vocabulary.eog}
    for kind in (TokenType.UNUSED, TokenType.CONTROL):
        found = [n for n in range(count) if vocabulary.types[n] is kind and n not in ends]
        if found:
            return found[-1]
    raise SettingsError(
        f"{meta.path} has no unused and no control token to mark rows with; name one that texts "
        "do not have with --mask-token"
    )
