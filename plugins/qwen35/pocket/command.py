"""The ``kinfolk`` command as a scorer and a completer: what a user's machine computes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pocket.sampling import Completion, Sampling
from pocket.scoring import Window
from tokenizers import Tokenizer


def kinfolk(*arguments: str) -> str:
    """Standard output of one command; its own error message if it fails."""
    done = subprocess.run(["kinfolk", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"kinfolk {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class CommandScorer:
    """``kinfolk logits`` on each window."""

    file: Path

    def nats(self, windows: list[Window]) -> Iterator[float]:
        with tempfile.TemporaryDirectory() as folder:
            ids, out = Path(folder, "ids.npy"), Path(folder, "logits.npy")
            for window in windows:
                np.save(ids, window.ids)
                kinfolk("logits", str(self.file), "--tokens", str(ids), "--out", str(out))
                yield surprise(np.load(out), window)


def surprise(logits: np.ndarray[Any, np.dtype[np.float32]], window: Window) -> float:
    """Negative log-likelihood (nats) of the scored tokens, from the logits of every position."""
    rows = logits[window.first - 1 : -1].astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    targets = window.ids[window.first :]
    picked = np.take_along_axis(rows, targets[:, None], axis=-1)[:, 0]
    return float((np.log(np.exp(rows).sum(axis=-1)) - picked).sum())


@dataclass(frozen=True, slots=True)
class CommandCompleter:
    """``kinfolk run --raw`` for each prompt and seed."""

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
