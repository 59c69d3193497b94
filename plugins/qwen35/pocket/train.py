"""Train the pocket model: ``python -m pocket.train --data DIR --out DIR --seconds 1200``.

Writes ``log.jsonl``, ``checkpoint.pt`` and, at the end, the Hugging Face directory ``hf``. If the
run is interrupted, the same command resumes it from the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pocket import data, scan, scoring, tokenizer
from pocket.config import Stage, TrainConfig
from pocket.export import export
from pocket.model import PocketModel
from pocket.optimizer import Optimizer
from pocket.rows import Rows
from pocket.snap import q4_k, snap
from tokenizers import Tokenizer
from torch import Tensor

log = logging.getLogger("pocket.train")

WORST_SCAN_ERROR = 2e-2
TIMED_STEPS = 40
VALIDATION_BYTES = 600_000


class Trainer:
    """A training run. ``step`` counts finished steps; with the seed, it determines the rows."""

    def __init__(self, config: TrainConfig, folder: Path, out: Path, device: torch.device) -> None:
        self.config, self.out, self.device = config, out, device
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(config.seed)
        model = PocketModel(config.model).to(device)
        if device.type == "cuda":
            self._check_scan()
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.data = parameter.data.bfloat16()
        self.model = model
        self.reader = model.reader()
        self.grid = torch.compile(q4_k, dynamic=False) if config.compile else q4_k
        if config.compile:
            model.compile_parts()
        self.optimizer = Optimizer(model, config.muon_decay, config.adam_decay)
        tokens = torch.from_numpy(np.load(folder / "train.npy").astype(np.int32)).to(device)
        self.rows = Rows(tokens, np.load(folder / "starts.npy"), config.seed)
        self.plain = tokenizer.without_specials(folder / "tokenizer.json")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        checked = data.read_texts(folder / "validation.jsonl.gz", VALIDATION_BYTES)
        self.validation = [entry.text for entry in checked]
        self.step, self.steps = 0, config.steps
        self.began = time.monotonic()

    def _check_scan(self) -> None:
        error = scan.check_kernels(self.device)
        log.info("scan kernels: relative error %.1e", error)
        if not error < WORST_SCAN_ERROR:
            raise RuntimeError(
                f"the scan kernels are wrong on this device (relative error {error:.1e}): "
                "another Triton version is needed"
            )

    def run(self, until: int | None = None) -> None:
        """Train to the end, or stop after step ``until``."""
        last = self.step
        mark = time.monotonic()
        while self.step < (self.steps or TIMED_STEPS + 1):
            loss = self._one_step()
            if not self.steps and self.step == TIMED_STEPS // 2:
                self._synchronise()
                mark, last = time.monotonic(), self.step
            elif not self.steps and self.step == TIMED_STEPS:
                self._synchronise()
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
        self._record({"step": self.step, "validation_free": free, "validation": snapped})
        self.save()
        export(self.out / "hf", self.config.model, self.model.state_dict(), self.tokenizer)

    def save(self) -> None:
        """Write a checkpoint to a temporary file, which then replaces the old checkpoint."""
        draft = self.out / "checkpoint.tmp"
        state = {
            "step": self.step,
            "steps": self.steps,
            "config": self.config.to_json(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, draft)
        draft.replace(self.out / "checkpoint.pt")

    def resume(self) -> bool:
        """Load the last checkpoint of the output folder; False if it has none.

        Raises ``ValueError`` if the checkpoint belongs to other settings.
        """
        file = self.out / "checkpoint.pt"
        if not file.exists():
            return False
        state = torch.load(file, map_location=self.device, weights_only=True)
        if state["config"] != self.config.to_json():
            raise ValueError(f"{file} belongs to a run with other settings; choose another --out")
        self.step, self.steps = state["step"], state["steps"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.write(self.rounding())
        return True

    def _log(self, loss: float, mark: float, last: int) -> None:
        self._synchronise()
        if not np.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {self.step}")
        seconds = time.monotonic() - mark
        speed = (self.step - last) * self.config.batch_tokens / max(seconds, 1e-9)
        self._record({"step": self.step, "loss": loss, "rate": self.rate(), "tok_per_s": speed})

    def _log_validation(self) -> None:
        self._record({"step": self.step, "validation": self.bits_per_byte(self.validation)})

    def _record(self, entry: dict[str, Any]) -> None:
        entry = {**entry, "seconds": round(time.monotonic() - self.began, 1)}
        log.info("%s", entry)
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


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
