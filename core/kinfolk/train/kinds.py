"""The kinds of drafters that can be trained: a folder each, behind one small protocol. Torch-free.

A kind is a reference to a function ``(TargetFile, TrainOptions) -> TrainingPlan``, which refuses
what cannot be trained before anything slow begins. The plan builds the :class:`TrainedDrafter` that
the loop trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kinfolk.config import ModelConfig
from kinfolk.gguf.file import GGUFFile
from kinfolk.registry import Registry
from kinfolk.text.formats import ChatFormat
from kinfolk.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from kinfolk.descriptors import Family
    from kinfolk.train.options import TrainOptions
    from kinfolk.train.target import FrozenTarget
    from kinfolk.train.texts import Text

DRAFTER_KINDS: Final[Mapping[str, str]] = {
    "dflash": "kinfolk.train.dflash.plan:plan_training",
    "mtp": "kinfolk.train.mtp.plan:plan_training",
}


@dataclass(frozen=True, slots=True)
class TargetFile:
    """The open file of the model that is drafted for, and what it says of the model."""

    file: GGUFFile
    family: Family
    config: ModelConfig
    tokenizer: Tokenizer
    chat_format: ChatFormat


class TrainingPlan(Protocol):
    """What is trained for a target.

    ``block``: rows of a draft, the last token and those that are guessed. ``feature_layers`` and
    ``final``: the features of the target that the drafter reads, as in ``Model.features``.
    """

    @property
    def block(self) -> int: ...

    @property
    def feature_layers(self) -> tuple[int, ...]: ...

    @property
    def final(self) -> bool: ...

    def build(self, target: FrozenTarget, options: TrainOptions) -> TrainedDrafter: ...

    def usage(self, out: Path) -> str:
        """How the file that is written is used, behind "use it with"."""
        ...


@dataclass(frozen=True, slots=True)
class Writing:
    """How the trained drafter is written to ``path``; ``name`` is empty unless it is stated.
    ``alone``: without the model, where it would be part of the model's file.

    ``progress(done, total)`` is called with bytes.
    """

    path: Path
    outtype: str
    name: str
    overwrite: bool
    alone: bool
    registry: Registry
    progress: Callable[[int, int], None]


class Sampled(Protocol):
    """What a step learns from one text; ``weight`` is the sum of the weights of its rows."""

    @property
    def weight(self) -> float: ...


class TrainedDrafter(Protocol):
    """A drafter that is trained: float32 ``parameters`` by name, ``depth`` tokens a draft."""

    target: FrozenTarget
    depth: int

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]: ...

    def sample(self, text: Text, generator: torch.Generator) -> Any:
        """Random places of a text to draft from, a :class:`Sampled`."""
        ...

    def loss(self, text: Text, sampled: Any) -> torch.Tensor:
        """The weighted sum of losses at these places, with gradients."""
        ...

    def hits(self, text: Text, sampled: Any) -> torch.Tensor:
        """int8 [places, depth]: 1 = the drafted token is the text's, 0 = it is not, -1 = the text
        has ended."""
        ...

    def write(self, parameters: Mapping[str, torch.Tensor], writing: Writing) -> int:
        """Write the file with these values of the parameters; returns its bytes."""
        ...
