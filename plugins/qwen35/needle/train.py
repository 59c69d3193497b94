"""Train the needle model: ``python -m needle.train --out DIR [--minutes 8] [--length 32768]``.

Writes ``log.jsonl``, ``checkpoint.pt``, and at the end the Hugging Face directory ``hf`` and
``needle.gguf``, which ``kinfolk serve`` runs. Ctrl-C writes them early. The same command resumes an
interrupted run, and with more ``--minutes`` continues one that has ended.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from needle import text
from needle.config import SHAPES, VALUE_WORDS, Lesson, Shape
from pocket.export import export
from pocket.model import GatedDeltaNet, PocketModel
from pocket.run import TrainingRun
from torch import Tensor
from torch.nn import functional as F

from kinfolk.convert.driver import convert
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

log = logging.getLogger("needle.train")

ENOUGH = 0.6
"""Part of the tokens of answers that must be right before rows become longer."""
REMEMBERED = 0.9
"""Weight of earlier steps in the average of that part."""
RETURN_EVERY = 4
"""Every so many steps the rows are of an earlier lesson, so that short texts stay known."""
OTHER_WEIGHT = 0.02
"""Weight of the tokens that are no answers, in the loss."""
FIRST_WEIGHT = 8.0
"""Weight of an answer's first word: it alone tells a needle from a decoy."""
OTHER_SHARE = 0.1
"""Part of these that the loss is of."""
LEAST_RATE = 0.05
SAVE_SECONDS = 60.0
LOG_STEPS = 20
HELD_OUT_SEED = 1 << 30
HELD_OUT_ROWS = 32
FILE = "needle.gguf"


def initialise(model: PocketModel) -> None:
    """Make the first half of the value heads of every delta layer forget at once, and every token
    read where it writes. So the layer begins with what its convolution sees, the last four tokens:
    attention needs that to find what stood behind the same words."""
    with torch.no_grad():
        for module in model.modules():
            if not isinstance(module, GatedDeltaNet):
                continue
            keys = module.key_heads * module.key_width
            for weight in (module.in_proj_qkv.weight, module.conv1d.weight):
                weight[:keys] = weight[keys : 2 * keys]
            module.dt_bias[: module.value_heads // 2] = -0.5
            module.A_log[: module.value_heads // 2] = math.log(16.0)


class Trainer(TrainingRun):
    """A run of so many seconds of training; ``lesson`` is the index of the present one."""

    def __init__(self, shape: Shape, length: int, seed: int, out: Path, device: str) -> None:
        self.shape, self.seed = shape, seed
        self.lessons = shape.lessons(length)
        self.tokenizer = text.make_tokenizer(shape.symbols)
        self.lexicon = text.Lexicon.of(lambda word: self.tokenizer.encode(word).ids)
        if self.tokenizer.get_vocab_size() > shape.model.vocab_size:
            raise ValueError(f"the tokenizer has {self.tokenizer.get_vocab_size()} tokens")
        torch.manual_seed(seed)
        model = PocketModel(shape.model)
        initialise(model)
        settings = {"seed": seed, "length": length, **shape.to_json()}
        super().__init__(model.to(device), settings, out, (shape.decay, shape.decay))
        self.lesson, self.spent, self.right = 0, 0.0, 0.0

    def progress_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("step", "lesson", "spent", "right")}

    def run(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Train until ``seconds`` were spent, those before an interruption included."""
        saved = mark = time.monotonic()
        batch = self.batch(self.step)
        while self.spent < seconds and not stop():
            progress = self.spent / seconds
            loss, right = self._one_step(batch, self.rate(progress))
            batch = self.batch(self.step)  # while the device computes
            self.right += (1 - REMEMBERED) * (float(right) - self.right)
            if not math.isfinite(float(loss)):
                raise FloatingPointError(f"the loss is {float(loss)} at step {self.step}")
            now = time.monotonic()
            self.spent += now - mark
            mark = now
            self._advance(progress)
            if self.step % LOG_STEPS == 0:
                self.record(
                    {
                        "step": self.step,
                        "length": self.lessons[self.lesson].length,
                        "loss": round(float(loss), 4),
                        "right": round(self.right, 4),
                        "spent": round(self.spent, 1),
                    }
                )
            if now - saved > SAVE_SECONDS:
                self.save()
                saved = mark = time.monotonic()
        self.save()

    def _one_step(self, batch: tuple[Tensor, Tensor], rate: float) -> tuple[Tensor, Tensor]:
        loss, right = self.loss(*batch)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        self.step += 1
        self.optimizer.step(self.shape.muon_lr * rate, self.shape.adam_lr * rate)
        return loss.detach(), right

    def loss(self, rows: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of the answers, and a little of the rest; and the part of answers' tokens that is
        right. rows [B, T + 1], answers of that shape."""
        hidden = self.model.model(rows[:, :-1]).flatten(0, 1)
        targets, asked = rows[:, 1:].flatten(), answers[:, 1:].flatten()
        generator = torch.Generator(rows.device).manual_seed(self.step)
        drawn = torch.rand(len(asked), generator=generator, device=rows.device) < OTHER_SHARE
        taken = (asked | drawn).nonzero()[:, 0]
        first = (answers[:, 1:] & ~answers[:, :-1]).flatten()[taken]
        asked, targets = asked[taken], targets[taken]
        logits = F.linear(hidden[taken], self.model.model.embed_tokens.weight).float()
        each = F.cross_entropy(logits, targets, reduction="none")
        weight = torch.where(asked, 1.0, OTHER_WEIGHT) + first * (FIRST_WEIGHT - 1)
        right = (logits.argmax(-1) == targets)[asked].float().mean()
        return (each * weight).sum() / weight.sum(), right

    # -- lessons ------------------------------------------------------------------------------

    def rate(self, progress: float) -> float:
        """Learning rate as a part of the highest: warm-up, plateau, linear decay."""
        warm = min(1.0, (self.step + 1) / self.shape.warmup_steps)
        left = (1.0 - progress) / (1.0 - self.shape.decay_from)
        return warm * max(LEAST_RATE, min(1.0, left))

    def _advance(self, progress: float) -> None:
        """Go on to the next lesson if answers are right, or its time is over."""
        if self.lesson == len(self.lessons) - 1:
            return
        if self.right >= ENOUGH or progress >= self.lessons[self.lesson].until:
            self.lesson += 1
            self.right = 0.0

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The rows of a step, and which of their tokens are those of answers."""
        lesson = self.lessons[self.lesson]
        random = np.random.default_rng((self.seed, step))
        if self.lesson and step % RETURN_EVERY == 0:
            lesson = self.lessons[random.integers(self.lesson)]
        return self._rows(lesson, lesson.rows, random)

    def _rows(
        self, lesson: Lesson, count: int, random: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        writer = text.Writer(self.lexicon, lesson.value_words, random)
        rows = [
            writer.row(lesson.length + 1, lesson.density, self.shape.decoys) for _ in range(count)
        ]
        tokens, answers = (np.stack(each) for each in zip(*rows, strict=True))
        return torch.from_numpy(tokens).to(self.device), torch.from_numpy(answers).to(self.device)

    # -- results ------------------------------------------------------------------------------

    @torch.no_grad()
    def measure(self) -> dict[int, float]:
        """The part of answers' tokens that is right in texts never trained on, by length."""
        found = {}
        for number, lesson in enumerate(self.lessons):
            if lesson.value_words != VALUE_WORDS:
                continue
            count = max(1, min(HELD_OUT_ROWS, HELD_OUT_ROWS * 1024 // lesson.length))
            rights = []
            for row in range(0, count, lesson.rows):
                random = np.random.default_rng((HELD_OUT_SEED + self.seed, number, row))
                rights.append(float(self.loss(*self._rows(lesson, lesson.rows, random))[1]))
            found[lesson.length] = round(sum(rights) / len(rights), 4)
        return found

    def write(self, outtype: str) -> Path:
        """Write the Hugging Face directory and the GGUF file; returns the file."""
        self.optimizer.write()
        export(self.out / "hf", self.shape.model, self.model.state_dict(), self.tokenizer)
        settings = load_settings()
        families = [each.value for each in Registry.discover(settings).families.values()]
        path = self.out / FILE
        convert(
            self.out / "hf", path, outtype=outtype, families=families, name="needle",
            overwrite=True,
        )  # fmt: skip
        return path


def main(arguments: list[str] | None = None) -> dict[int, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="full")
    parser.add_argument("--length", type=int, default=32_768, help="tokens of the longest rows")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training, without the rest")
    parser.add_argument("--outtype", default="bf16", help="as of kinfolk convert")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    shape = SHAPES[options.shape]
    least = 2 * (text.KEY_WORDS + VALUE_WORDS + 4) + 1
    if options.length < least:
        parser.error(f"--length {options.length}: a fact and its question are {least} tokens")
    trainer = Trainer(shape, options.length, options.seed, options.out, options.device)
    if trainer.resume():
        log.info("resumed at step %d, after %.0f s", trainer.step, trainer.spent)
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.default_int_handler)  # a second one ends at once
        stopped.append(number)

    before = signal.signal(signal.SIGINT, stop)
    try:
        trainer.run(60 * options.minutes, lambda: bool(stopped))
    finally:
        signal.signal(signal.SIGINT, before)
    path = trainer.write(options.outtype)
    right = trainer.measure()
    trainer.record({"step": trainer.step, "held_out": right})
    log.info("%s: %s", path, "stopped early" if stopped else "done")
    return right


if __name__ == "__main__":
    main()
