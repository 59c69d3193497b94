"""Train the pocket model: ``python -m pocket.train --data DIR --out DIR --seconds 1200``.

Writes ``log.jsonl``, ``checkpoint.pt`` and, at the end, the Hugging Face directory ``hf``. If the
run is interrupted, the same command resumes it from the last checkpoint.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pocket import data, scoring, tokenizer
from pocket.config import Stage, TrainConfig
from pocket.export import export
from pocket.model import PocketModel
from pocket.rows import Rows
from pocket.run import TrainingRun
from pocket.snap import q4_k, snap
from tokenizers import Tokenizer
from torch import Tensor

log = logging.getLogger("pocket.train")

TIMED_STEPS = 40
VALIDATION_BYTES = 600_000


class Trainer(TrainingRun):
    """A training run. ``step`` counts finished steps; with the seed, it determines the rows."""

    def __init__(self, config: TrainConfig, folder: Path, out: Path, device: torch.device) -> None:
        self.config = config
        torch.manual_seed(config.seed)
        model = PocketModel(config.model).to(device)
        super().__init__(model, config.to_json(), out, (config.muon_decay, config.adam_decay))
        self.reader = model.reader()
        self.grid = torch.compile(q4_k, dynamic=False) if config.compile else q4_k
        if config.compile:
            model.compile_parts()
        tokens = torch.from_numpy(np.load(folder / "train.npy").astype(np.int32)).to(device)
        self.rows = Rows(tokens, np.load(folder / "starts.npy"), config.seed)
        self.plain = tokenizer.without_specials(folder / "tokenizer.json")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        checked = data.read_texts(folder / "validation.jsonl.gz", VALIDATION_BYTES)
        self.validation = [entry.text for entry in checked]
        self.steps = config.steps

    def run(self, until: int | None = None) -> None:
        """Train to the end, or stop after step ``until``."""
        last = self.step
        mark = time.monotonic()
        while self.step < (self.steps or TIMED_STEPS + 1):
            loss = self._one_step()
            if not self.steps and self.step == TIMED_STEPS // 2:
                self.synchronise()
                mark, last = time.monotonic(), self.step
            elif not self.steps and self.step == TIMED_STEPS:
                self.synchronise()
                each = (time.monotonic() - mark) / (self.step - last)
                self.steps = self.step + int(self.config.seconds / each)
                log.info("%.1f ms a step: %d steps", each * 1e3, self.steps)
            if self.step % self.config.log_every == 0:
                self._log(float(loss), mark, last)
                mark, last = time.monotonic(), self.step
            if self.steps and self.step % self.config.eval_every == 0:
                self._log_validation()
                mark, last = time.monotonic(), self.step
            if self.step % self.config.save_every == 0:
                self.save()
            if self.step == until:
                break
        if self.step == self.steps:
            self.finish()

    def _one_step(self) -> Tensor:
        index, stage = self.stage()
        rows = self.config.batch_tokens // stage.length
        batch = self.rows.batch(index, rows, stage.length)
        loss = self.model.loss(batch)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        self.step += 1
        rate = self.rate()
        self.optimizer.step(self.config.muon_lr * rate, self.config.adam_lr * rate, self.rounding())
        return loss.detach()

    def progress(self) -> float:
        return self.step / self.steps if self.steps else 0.0

    def stage(self) -> tuple[int, Stage]:
        """The next step's number within its stage, and the stage."""
        begin = 0
        for stage in self.config.stages:
            end = round(stage.until * self.steps)
            if not self.steps or self.step < end:
                return self.step - begin, stage
            begin = end
        raise IndexError(f"step {self.step} lies behind the last stage")

    def rate(self) -> float:
        """Learning rate as a fraction of the peak: warm-up, plateau, linear decay to zero."""
        warm = min(1.0, self.step / max(1, self.config.warmup_steps))
        left = (1.0 - self.progress()) / (1.0 - self.config.decay_from)
        return warm * min(1.0, left)

    def rounding(self) -> Callable[[str, Tensor], Tensor] | None:
        if self.progress() < self.config.snap_from:
            return None
        grid = self.grid
        return lambda name, weight: snap(name, weight, self.config.model, grid)

    def bits_per_byte(self, texts: list[str]) -> float:
        scorer = scoring.TorchScorer(self.reader)
        end = tokenizer.end_of_text(self.tokenizer)
        return scoring.total(scoring.score(scorer, self.plain, end, texts)).bits_per_byte

    def finish(self) -> None:
        """Score the model with and without the Q4_K grid, then write the Hugging Face directory."""
        self.optimizer.write(None)
        free = self.bits_per_byte(self.validation)
        self.optimizer.write(self.rounding())
        snapped = self.bits_per_byte(self.validation)
        self.record({"step": self.step, "validation_free": free, "validation": snapped})
        self.save()
        export(self.out / "hf", self.config.model, self.model.state_dict(), self.tokenizer)

    def progress_state(self) -> dict[str, Any]:
        return {"step": self.step, "steps": self.steps}

    def _log(self, loss: float, mark: float, last: int) -> None:
        self.synchronise()
        if not np.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {self.step}")
        seconds = time.monotonic() - mark
        speed = (self.step - last) * self.config.batch_tokens / max(seconds, 1e-9)
        self.record({"step": self.step, "loss": loss, "rate": self.rate(), "tok_per_s": speed})

    def _log_validation(self) -> None:
        self.record({"step": self.step, "validation": self.bits_per_byte(self.validation)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    config = replace(TrainConfig(), seconds=arguments.seconds, seed=arguments.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = Trainer(config, arguments.data, arguments.out, device)
    if trainer.resume():
        log.info("resumed at step %d of %d", trainer.step, trainer.steps)
    trainer.run()


if __name__ == "__main__":
    main()
