"""The training loop: AdamW with warm-up and cosine decay, measured on texts that are held out.

Everything random in a step depends on the seed and the step's number alone, so a run that was
interrupted goes on as if it had not been.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from kinfolk.errors import EngineError
from kinfolk.train.kinds import TrainedDrafter
from kinfolk.train.texts import Text

_TIMED: Final = 5
"""Steps that are timed to find how many fit in a number of seconds; one more comes before them."""
_WARM_UP: Final = 0.04
_DECAY_TO: Final = 0.02
"""The rate of the last step, as a part of the highest."""
_SEED_STRIDE: Final = 1_000_003
_HELD_OUT_SEED: Final = 7


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """``batch`` texts a step; ``rate`` is the highest learning rate; ``ema`` the decay of averaged
    weights, 0 = none."""

    batch: int = 1
    rate: float = 6e-4
    decay: float = 0.0
    clip: float = 1.0
    ema: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a drafter hits in held-out texts.

    ``hits[k]`` is the part of drafts whose token k is right, of those whose tokens before it are
    right. So their products are the chances that so many tokens are kept, and 1 + the sum of the
    products is the expected length of a step: the token that the target adds comes on top.
    """

    hits: tuple[float, ...]

    @property
    def length(self) -> float:
        """Tokens a step."""
        reached, total = 1.0, 1.0
        for hit in self.hits:
            reached *= hit
            total += reached
        return total

    @classmethod
    def of(cls, hits: torch.Tensor) -> Measured:
        """From int8 [places, depth] of :meth:`TrainedDrafter.hits`."""
        known, right = hits >= 0, hits > 0
        before = torch.ones(len(hits), dtype=torch.bool)
        rates = []
        for column in range(hits.shape[1]):
            asked = before & known[:, column]
            before = asked & right[:, column]
            count = int(asked.sum())
            rates.append(int(before.sum()) / count if count else 0.0)
        return cls(tuple(rates))


class Training:
    """One run of ``steps`` steps; ``step`` counts those that are done."""

    def __init__(
        self,
        drafter: TrainedDrafter,
        texts: Sequence[Text],
        held_out: Sequence[Text],
        options: TrainingOptions,
        steps: int,
    ) -> None:
        self.drafter, self.options = drafter, options
        self.texts, self.held_out = texts, held_out
        self.steps, self.step = steps, 0
        self.seconds = 0.0
        self._optimizer = torch.optim.AdamW(
            list(drafter.parameters.values()), lr=0.0, weight_decay=options.decay, betas=(0.9, 0.95)
        )
        self._average = (
            {name: tensor.detach().clone() for name, tensor in drafter.parameters.items()}
            if options.ema
            else {}
        )

    # -- running ------------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[float]:
        """Train, step by step, to the end or until ``stop()``; yields the loss of each step.

        Raises :class:`EngineError` if the loss is not finite.
        """
        while self.step < self.steps and not stop():
            began = time.monotonic()
            loss = self._gradients()
            if not math.isfinite(loss):
                raise EngineError(
                    f"the loss of step {self.step} is {loss}: choose a smaller --learning-rate"
                )
            self._update()
            self.step += 1
            self.seconds += time.monotonic() - began
            yield loss

    def _gradients(self) -> float:
        """Gradients of the next step; returns its loss."""
        generator = torch.Generator().manual_seed(self.options.seed * _SEED_STRIDE + self.step)
        texts = self._batch()
        sampled = [self.drafter.sample(text, generator) for text in texts]
        weight = sum(each.weight for each in sampled)
        self._optimizer.zero_grad(set_to_none=True)
        losses = []
        for text, each in zip(texts, sampled, strict=True):
            loss = self.drafter.loss(text, each) / weight
            loss.backward()
            losses.append(loss.detach())
        return float(torch.stack(losses).sum())  # the host waits once a step

    def _batch(self) -> list[Text]:
        """The texts of the next step: all of them once an epoch, each epoch in its own order."""
        found, size = [], self.options.batch
        for place in range(self.step * size, (self.step + 1) * size):
            epoch, index = divmod(place, len(self.texts))
            seed = self.options.seed * _SEED_STRIDE + epoch
            order = torch.randperm(len(self.texts), generator=torch.Generator().manual_seed(seed))
            found.append(self.texts[int(order[index])])
        return found

    def _update(self) -> None:
        parameters = self.drafter.parameters
        torch.nn.utils.clip_grad_norm_(parameters.values(), self.options.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.rate * self.rate()
        self._optimizer.step()
        with torch.no_grad():
            for name, average in self._average.items():
                # The first averages would be of random weights.
                decay = min(self.options.ema, (self.step + 1) / (self.step + 10))
                average.lerp_(parameters[name], 1 - decay)

    def rate(self) -> float:
        """The learning rate of the next step, as a part of the highest."""
        warm = max(1, round(_WARM_UP * self.steps))
        if self.step < warm:
            return (self.step + 1) / warm
        progress = (self.step - warm) / max(1, self.steps - warm)
        return _DECAY_TO + (1 - _DECAY_TO) * (1 + math.cos(math.pi * progress)) / 2

    # -- results ------------------------------------------------------------------------------

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The averaged parameters if there are any, else the parameters."""
        return self._average or self.drafter.parameters

    @torch.no_grad()
    def measure(self) -> Measured:
        """Measure :meth:`weights` at places of the held-out texts, the same ones every time."""
        parameters = self.drafter.parameters
        own = {name: parameters[name].detach().clone() for name in self._average}
        for name, average in self._average.items():
            parameters[name].copy_(average)
        generator = torch.Generator().manual_seed(_HELD_OUT_SEED)
        hits = [
            self.drafter.hits(text, self.drafter.sample(text, generator)) for text in self.held_out
        ]
        for name, tensor in own.items():
            parameters[name].copy_(tensor)
        return Measured.of(torch.cat(hits))

    # -- interruption -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that another :class:`Training` needs to go on, on the CPU."""
        return {
            "step": self.step,
            "steps": self.steps,
            "seconds": self.seconds,
            "parameters": _on_cpu(self.drafter.parameters),
            "average": _on_cpu(self._average),
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.step, self.steps, self.seconds = state["step"], state["steps"], state["seconds"]
        with torch.no_grad():
            for name, tensor in self.drafter.parameters.items():
                tensor.copy_(state["parameters"][name])
            for name, average in self._average.items():
                average.copy_(state["average"][name])
        self._optimizer.load_state_dict(state["optimizer"])


def steps_in(
    seconds: float,
    drafter: TrainedDrafter,
    texts: Sequence[Text],
    options: TrainingOptions,
) -> int:
    """How many steps take about so many seconds, by the time of a few that change nothing."""
    trial = Training(drafter, texts, (), options, _TIMED + 1)
    began = time.monotonic()
    for trial.step in range(_TIMED + 1):
        if trial.step == 1:
            began = time.monotonic()
        trial._gradients()
        for tensor in drafter.parameters.values():
            tensor.grad = None
    return max(1, int(seconds / ((time.monotonic() - began) / _TIMED)))


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
