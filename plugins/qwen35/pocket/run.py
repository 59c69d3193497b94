"""What every training run has: model and optimizer on a device, checkpoints, and a log."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import torch
from pocket import scan
from pocket.model import PocketModel
from pocket.optimizer import Optimizer, Rounding

log = logging.getLogger("pocket.run")

WORST_SCAN_ERROR = 2e-2


class TrainingRun:
    """``step`` counts finished steps. ``settings`` decide the result; a checkpoint has them too.

    On a GPU the model's matrices are bf16. Raises ``RuntimeError`` if the scan's kernels are wrong
    there.
    """

    step = 0

    def __init__(
        self,
        model: PocketModel,
        settings: dict[str, Any],
        out: Path,
        decays: tuple[float, float],
    ) -> None:
        self.model, self.settings, self.out = model, settings, out
        self.device = next(model.parameters()).device
        out.mkdir(parents=True, exist_ok=True)
        if self.device.type == "cuda":
            self._check_scan()
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.data = parameter.data.bfloat16()
        self.optimizer = Optimizer(model, *decays)
        self.began = time.monotonic()

    def _check_scan(self) -> None:
        error = scan.check_kernels(self.device)
        log.info("scan kernels: relative error %.1e", error)
        if not error < WORST_SCAN_ERROR:
            raise RuntimeError(
                f"the scan kernels are wrong on this device (relative error {error:.1e}): "
                "another Triton version is needed"
            )

    def rounding(self) -> Rounding | None:
        """How matrices are rounded at this step, ``None`` if they are not."""
        return None

    # -- checkpoints --------------------------------------------------------------------------

    def progress_state(self) -> dict[str, Any]:
        """How far the run is, by the names of attributes."""
        return {"step": self.step}

    def save(self) -> None:
        """Write a checkpoint to a temporary file, which then replaces the old checkpoint."""
        draft = self.out / "checkpoint.tmp"
        state = {
            **self.progress_state(),
            "config": self.settings,
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
        if state["config"] != self.settings:
            raise ValueError(f"{file} belongs to a run with other settings; choose another --out")
        for name in self.progress_state():
            setattr(self, name, state[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.write(self.rounding())
        return True

    # -- the log ------------------------------------------------------------------------------

    def record(self, entry: dict[str, Any]) -> None:
        entry = {**entry, "seconds": round(time.monotonic() - self.began, 1)}
        log.info("%s", entry)
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
