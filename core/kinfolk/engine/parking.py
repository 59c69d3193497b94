"""Parking: a model's device memory is given to other programs until it is unparked.

Parking the target frees the weights of model, drafter and readers, the state of sequences
and all captured steps; what host memory and files keep of earlier prompts stays. Parking the draft
frees the drafter's weights alone, and requests run without its drafts.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from typing import Any, Final, cast

import torch

from kinfolk.engine.failures import explain
from kinfolk.engine.loading import Progress
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.engine.readers import Readers
from kinfolk.engine.scoring_queue import ScoringQueue
from kinfolk.errors import EngineError
from kinfolk.model_api import Model
from kinfolk.sched.scheduler import Scheduler
from kinfolk.types import Parkable

log = logging.getLogger(__name__)

PARKABLE_PARTS: Final[dict[Parkable, frozenset[str]]] = {
    "target": frozenset({"target"}),
    "draft": frozenset({"draft"}),
    "all": frozenset({"target", "draft"}),
}


class ParkedModel:
    """Stands where a model's weights were."""

    def __getattr__(self, name: str) -> Any:
        raise EngineError(f"the model is parked, so it has no {name!r}: unpark it first")


class Parking:
    """Frees and loads the parts of the model that a runner runs. No step may be pending.

    ``parked`` names the parts that are parked. The engine's thread owns it.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        readers: Readers | None = None,
        scoring: ScoringQueue | None = None,
    ) -> None:
        self._runner, self._scheduler = runner, scheduler
        self._readers, self._scoring = readers or Readers(), scoring
        self._graphs = runner.loaded.graphs
        self.parked: frozenset[str] = frozenset()

    def check(self, part: Parkable) -> frozenset[str]:
        """The parts that a name stands for. Raises :class:`EngineError` for one that cannot be
        parked."""
        if part not in PARKABLE_PARTS:
            raise EngineError(f"only {', '.join(PARKABLE_PARTS)} can be parked, not {part!r}")
        if self._runner.loaded.source is None:
            raise EngineError("the model was not loaded from a file, so it cannot be parked")
        if part == "draft" and self._runner.loaded.drafters.with_weights is None:
            raise EngineError("the model has no drafter with weights that could be parked")
        return PARKABLE_PARTS[part]

    def park(self, part: Parkable) -> None:
        """Free a part; no request may have a slot. Parts that are parked stay so."""
        parts, loaded = self.check(part), self._runner.loaded
        if "target" in parts - self.parked:
            if self._scoring is not None:
                self._scoring.parked = True
                self._scoring.end("the model that scores prompts is parked")
            self._readers.park()
            self._runner.apply(self._scheduler.leave_device())
            self._runner.state.free()
            self._runner.use(
                replace(
                    loaded,
                    model=cast(Model, ParkedModel()),
                    drafter=None,
                    experts=None,
                    real_rows=None,
                    graphs=False,
                )
            )
            if loaded.experts is not None:
                loaded.experts.release()
        elif "draft" in parts - self.parked and "target" not in self.parked:
            self._runner.use(replace(loaded, drafter=None))
        self._set(self.parked | parts)
        _give_back(loaded.device)

    def unpark(self, part: Parkable, progress: Progress | None = None) -> None:
        """Load a part again. If that fails it stays parked, nothing is left of the attempt, and
        :class:`EngineError` says why."""
        parts, loaded = self.check(part), self._runner.loaded
        source = loaded.source
        assert source is not None
        left = self.parked - parts
        if left == self.parked:
            return
        try:
            if "target" in self.parked - left:
                self._runner.state.allocate()
                read = source.load(progress, drafter="draft" not in left)
                self._readers.unpark(progress)
                self._runner.use(
                    replace(
                        loaded,
                        model=read.model,
                        drafter=read.drafter,
                        experts=read.experts,
                        real_rows=read.real_rows,
                        graphs=self._graphs,
                    )
                )
            elif "target" not in left:
                self._runner.use(source.with_drafter(loaded, progress))
        except Exception as error:
            if "target" in self.parked:
                self._runner.state.free()
                self._readers.park()
            self._runner.use(loaded)
            why = explain(error)
            # The traceback refers to what was loaded.
            error.__traceback__ = None
            _give_back(loaded.device)
            raise EngineError(f"cannot unpark {part}: {why}") from error
        if self._runner.loaded.drafter is not None:
            self._scheduler.drafter_reloaded()
        self._set(left)

    def resume(self) -> None:
        """Let the scheduler do what the parked parts allow."""
        self._scheduler.admits = "target" not in self.parked
        self._scheduler.proposes = "draft" not in self.parked
        if self._scoring is not None:
            self._scoring.parked = "target" in self.parked

    def _set(self, parked: frozenset[str]) -> None:
        self.parked = parked
        self.resume()


def _give_back(device: torch.device) -> None:
    """Return freed memory to the device: graphs and models are freed with their cycles."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
