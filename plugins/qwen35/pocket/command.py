"""Scorer and completer of a GGUF file that run kinfolk, so that results are those of a user."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pocket.sampling import Completion, Sampling
from pocket.scoring import WINDOW, Window
from tokenizers import Tokenizer

from kinfolk.cli.loading import open_model
from kinfolk.cli.perplexity import token_losses
from kinfolk.settings import load_settings


def kinfolk(*arguments: str) -> str:
    """Run one command and return its standard output.

    Raises ``RuntimeError`` with the command's error message if it fails.
    """
    done = subprocess.run(["kinfolk", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"kinfolk {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class RuntimeScorer:
    """Scores with ``kinfolk perplexity``'s code; loads the file once for all windows."""

    file: Path

    def nats(self, windows: list[Window]) -> Iterator[float]:
        settings = load_settings(slots=1, checkpoints=0, context=WINDOW)
        with open_model(settings, str(self.file)) as loaded:
            for window in windows:
                losses = token_losses(loaded, window.ids.tolist())
                yield math.fsum(losses[window.first - 1 :])


@dataclass(frozen=True, slots=True)
class CommandCompleter:
    """Runs ``kinfolk run --raw`` for each prompt and seed."""

    file: Path
    tokenizer: Tokenizer

    def complete(
        self, prompts: list[str], seeds: list[int], how: Sampling, count: int
    ) -> list[Completion]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            one = partial(self._one, how=how, count=count)
            return list(pool.map(one, prompts, seeds))

    def _one(self, prompt: str, seed: int, how: Sampling, count: int) -> Completion:
        out = kinfolk(
            "run", "-m", str(self.file), "--raw", "--json", "-n", str(count),
            "--seed", str(seed), "--temperature", str(how.temperature),
            "--top-k", str(how.top_k), "--top-p", str(how.top_p), "--min-p", str(how.min_p),
            "--repetition-penalty", str(how.repetition), prompt,
        )  # fmt: skip
        answer = json.loads(out)
        text = str(answer["text"])
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
        return Completion(tokens, text, answer["finish_reason"] == "stop")
