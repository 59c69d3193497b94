"""A training run from the target's file to the drafter's, which can be interrupted at any step."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch

from kinfolk.engine.loading import load_model
from kinfolk.engine.preparing import choose_device
from kinfolk.engine.runtime import Runtime
from kinfolk.errors import RequestError
from kinfolk.registry import Registry
from kinfolk.settings import Settings
from kinfolk.train.checkpoint import TrainingCheckpoint, checkpoint_path
from kinfolk.train.continuations import Continuing, continued
from kinfolk.train.kinds import TrainedDrafter, Writing
from kinfolk.train.loop import Measured, Training, TrainingOptions, steps_in
from kinfolk.train.options import TrainOptions
from kinfolk.train.prepared import PreparedRun
from kinfolk.train.target import FrozenTarget
from kinfolk.train.texts import Text

_SECONDS: Final = 600.0
_MEASUREMENTS: Final = 20
"""Times that the drafter is measured in a run."""
_SAVE_EVERY: Final = 60.0
"""Seconds between checkpoints: what a crash can cost."""
_GIB: Final = 1 << 30
_FEATURES_AT_ONCE: Final = 16
"""Texts whose features a GPU computes in one step."""


class Report(Protocol):
    """Where a run says how far it is."""

    def note(self, message: str) -> None: ...

    def progress(self, done: int, total: int, what: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run has written."""

    path: Path
    nbytes: int
    steps: int
    seconds: float
    measured: Measured


class TrainingRun:
    """``settings`` are those of the target, whose context and slots the run sets itself."""

    def __init__(
        self,
        prepared: PreparedRun,
        options: TrainOptions,
        settings: Settings,
        registry: Registry,
        out: Path,
        report: Report,
        stop: Callable[[], bool],
    ) -> None:
        self.prepared, self.options, self.settings = prepared, options, settings
        self.registry, self.out, self.report, self.stop = registry, out, report, stop
        self.checkpoint_path = checkpoint_path(out)
        self._saved = time.monotonic()

    def run(self, *, restart: bool = False, overwrite: bool = False) -> Trained | None:
        """Train and write the file; ``None`` if stopped before, with a checkpoint beside it.

        ``restart``: a checkpoint that is there is not read, and is replaced by the first new one.
        """
        identity = self.prepared.identity
        if restart:
            checkpoint = TrainingCheckpoint(identity)
        else:
            checkpoint = TrainingCheckpoint.load(self.checkpoint_path, identity)
        texts, held_out = self._texts(checkpoint)
        if self.stop():
            self._save(checkpoint)
            return None
        # On a CPU a text's features may not depend on which others are computed beside it.
        device = choose_device(self.settings.device)
        settings = self._settings(slots=1 if device.type == "cpu" else _FEATURES_AT_ONCE)
        how = self.prepared.target, settings, self.registry, self.report.progress
        loaded = load_model(*how, keep_profile=False)
        with loaded.file:
            options, plan = self.options, self.prepared.plan
            target = FrozenTarget(
                loaded,
                plan.feature_layers,
                final=plan.final,
                kept_bytes=int(options.feature_memory * _GIB),
            )
            drafter = plan.build(target, options)
            training = self._training(drafter, texts, held_out, checkpoint)
            if training is None:
                self._save(checkpoint)
                return None
            if not self._train(training, checkpoint):
                return None
            trained = self._write(drafter, training, overwrite=overwrite)
        self.checkpoint_path.unlink(missing_ok=True)
        return trained

    def _settings(self, *, slots: int) -> Settings:
        """Those of the user, without a drafter: it would take the model's features for itself."""
        changes = {
            "slots": slots,
            "max_queue": slots,  # as many wait as run
            "checkpoints": 0,
            "context": self.options.length,
            "draft": ("off",),
        }
        return self.settings.model_copy(update=changes)

    def _save(self, checkpoint: TrainingCheckpoint) -> None:
        checkpoint.save(self.checkpoint_path)
        self._saved = time.monotonic()

    # -- texts --------------------------------------------------------------------------------

    def _texts(self, checkpoint: TrainingCheckpoint) -> tuple[list[Text], list[Text]]:
        """(texts to learn from, held-out texts), continued by the model if it is asked to."""
        prompts = [*self.prepared.held_out, *self.prepared.texts]
        if self.options.continue_ is None:
            found = dict(enumerate(prompts))
        else:
            self._continue(prompts, checkpoint)
            found = checkpoint.texts
        parted = len(self.prepared.held_out)
        block = self.prepared.plan.block
        sound = {n: text for n, text in found.items() if text.holds_block(block)}
        held_out = [sound[n] for n in sorted(sound) if n < parted]
        texts = [sound[n] for n in sorted(sound) if n >= parted]
        if not self.stop() and not (texts and held_out):
            raise RequestError(
                f"of {len(found)} continuations too few are long enough for a block of "
                f"{block} rows: choose a larger --continue, or other texts"
            )
        return texts, held_out

    def _continue(self, prompts: Sequence[Text], checkpoint: TrainingCheckpoint) -> None:
        """Fill ``checkpoint.texts`` up."""
        missing = [n for n in range(len(prompts)) if n not in checkpoint.texts]
        if not missing:
            return
        options = self.options
        assert options.continue_ is not None
        settings = self._settings(slots=min(options.sequences, len(missing)))
        how = Continuing(options.continue_, options.temperature, options.seed)
        opened = self.prepared.target, settings, self.registry, self.report.progress
        began, count = time.monotonic(), 0
        try:
            with Runtime.open(*opened, keep_profile=False) as runtime:
                chosen = {n: prompts[n] for n in missing}
                for number, text in continued(runtime, chosen, how, self.stop):
                    checkpoint.texts[number] = text
                    count += len(text.tokens) - text.first
                    rate = f"{count / (time.monotonic() - began):.0f} tok/s"
                    self.report.progress(len(checkpoint.texts), len(prompts), f"continued, {rate}")
                    if time.monotonic() - self._saved > _SAVE_EVERY:
                        self._save(checkpoint)
        finally:
            self._save(checkpoint)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.report.note(
            f"the model continued {len(checkpoint.texts)} of {len(prompts)} texts: {count} tokens "
            f"in {time.monotonic() - began:.0f} s"
        )

    # -- training -----------------------------------------------------------------------------

    def _training(
        self,
        drafter: TrainedDrafter,
        texts: Sequence[Text],
        held_out: Sequence[Text],
        checkpoint: TrainingCheckpoint,
    ) -> Training | None:
        """A new run or an interrupted one; ``None`` if stopped before its steps are known."""
        options = self.options
        how = TrainingOptions(
            batch=min(options.batch, len(texts)),
            rate=options.learning_rate,
            decay=options.weight_decay,
            ema=options.ema,
            seed=options.seed,
        )
        if checkpoint.training:
            training = Training(drafter, texts, held_out, how, 1)
            training.restore(checkpoint.training)
            self.report.note(f"going on after step {training.step} of {training.steps}")
            return training
        for number in drafter.target.keep_all(texts):
            if self.stop():
                return None
            self.report.progress(number, len(texts), "features")
        steps = options.steps
        if steps is None:
            steps = steps_in(options.seconds or _SECONDS, drafter, texts, how)
        numbers = sum(tensor.numel() for tensor in drafter.parameters.values())
        self.report.note(
            f"{steps} steps, {numbers / 1e6:.1f} M numbers, {len(texts)} texts of "
            f"{sum(len(t.tokens) - t.first for t in texts)} tokens to learn, {len(held_out)} held "
            "out"
        )
        return Training(drafter, texts, held_out, how, steps)

    def _train(self, training: Training, checkpoint: TrainingCheckpoint) -> bool:
        """Train to the end, or save a checkpoint and return ``False``.

        An error leaves the checkpoint of the last minute: weights that caused it are not kept.
        """
        every = max(1, training.steps // _MEASUREMENTS)
        losses: list[float] = []
        for loss in training.run(self.stop):
            losses.append(loss)
            self.report.progress(training.step, training.steps, f"loss {loss:.3f}")
            if training.step % every == 0 and training.step < training.steps:
                self.report.note(_line(training, losses, training.measure()))
                losses.clear()
            if time.monotonic() - self._saved > _SAVE_EVERY:
                checkpoint.training = training.state()
                self._save(checkpoint)
        checkpoint.training = training.state()
        # At the end too: the file may fail to be written.
        self._save(checkpoint)
        return training.step >= training.steps

    def _write(self, drafter: TrainedDrafter, training: Training, *, overwrite: bool) -> Trained:
        measured = training.measure()
        self.report.note(_line(training, [], measured))
        writing = Writing(
            self.out,
            self.options.outtype,
            self.options.name,
            overwrite,
            self.options.alone,
            self.registry,
            lambda done, total: self.report.progress(done, total, "written"),
        )
        nbytes = drafter.write(training.weights(), writing)
        return Trained(self.out, nbytes, training.steps, training.seconds, measured)


def _line(training: Training, losses: Sequence[float], measured: Measured) -> str:
    """``step 100 of 2000, 31 s: loss 3.214, expected length 1.62 (45 % 31 % 12 %)``"""
    loss = f"loss {sum(losses) / len(losses):.3f}, " if losses else ""
    hits = " ".join(f"{100 * hit:.0f}" for hit in measured.hits)
    return (
        f"step {training.step} of {training.steps}, {training.seconds:.0f} s: {loss}expected "
        f"length {measured.length:.2f} (right, %: {hits})"
    )
