"""What a training run is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kinfolk.errors import SettingsError

_NOT_THE_RESULT = ("seconds", "steps", "sequences", "feature_memory", "outtype", "name", "alone")


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of ``kinfolk train-drafter`` by name; its help says what they mean."""

    kind: str = "dflash"
    seconds: float | None = None
    steps: int | None = None
    continue_: int | None = None
    temperature: float = 0.0
    sequences: int = 16
    length: int = 512
    texts: int | None = None
    block: int | None = None
    layers: int | None = None
    window: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    feed_forward: int | None = None
    feature_layers: tuple[int, ...] = ()
    mask_token: int | None = None
    anchors: int = 64
    batch: int = 4
    learning_rate: float = 6e-4
    weight_decay: float = 0.0
    gamma: float | None = None
    ema: float = 0.0
    feature_memory: float = 2.0
    seed: int = 0
    outtype: str = "q8_0"
    name: str = ""
    alone: bool = False

    def check(self) -> None:
        """Raise :class:`SettingsError` for options that contradict each other."""
        if self.seconds is not None and self.steps is not None:
            raise SettingsError("--seconds and --steps both say how long to train; name one")
        if self.continue_ is not None and self.continue_ >= self.length:
            raise SettingsError(
                f"--continue {self.continue_} leaves nothing of --length {self.length} for the "
                "text before it; choose a larger --length"
            )

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raise :class:`SettingsError` for the first of these options that is stated."""
        stated = next((name for name in names if getattr(self, name)), None)
        if stated is not None:
            raise SettingsError(f"--kind {self.kind} takes no {_flag(stated)}: {why}")

    def identity(self) -> dict[str, Any]:
        """The options that decide the drafter's weights, by their flags; ``steps`` only if they
        are stated."""
        found: dict[str, Any] = {} if self.steps is None else {"--steps": self.steps}
        for name in self.__dataclass_fields__:
            if name not in _NOT_THE_RESULT:
                value = getattr(self, name)
                found[_flag(name)] = list(value) if isinstance(value, tuple) else value
        return found


def usual_gamma(block: int) -> float:
    """The decay of losses in a block of so many rows; the published ones for 8 and 16."""
    return min(block / 2, 7.0)


def _flag(name: str) -> str:
    return "--" + name.strip("_").replace("_", "-")


def layer_numbers(text: str | None) -> tuple[int, ...]:
    """``"1,5,9"`` -> (1, 5, 9). Raises :class:`SettingsError`."""
    try:
        return tuple(int(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        raise SettingsError(
            f"--feature-layers {text}: expected numbers of layers with commas between them"
        ) from None
