"""Train a head for a model:

    python -m kinfolk_drafter_demo.train OUT.gguf [--model MODEL.gguf] [--data FILE ...]

The model reads texts, and the head learns to foresee what the model makes of them: the features of
the rows ahead, and the tokens that these choose. Without ``--model`` it is the bundled model,
without ``--data`` the texts are some modules of Python's standard library.
"""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import click
import numpy as np
import numpy.typing as npt
import torch

from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.text import open_text
from kinfolk.registry import Registry
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.settings import load_settings
from kinfolk_drafter_demo.file import EPS, MIX, OUT, TOKEN_NORM, write

WINDOW: Final = 256
"""Tokens of a text that the model reads at once."""

ROWS: Final = 64
"""Rows from which one step of training looks ahead."""

RATE: Final = 2e-3
"""The largest learning rate; it rises for a tenth of the steps, then falls to nothing."""

DEPTH: Final = 4
"""Tokens that the head drafts."""

SHORTEST: Final = 16
"""Texts of fewer tokens are passed over."""

FILES: Final = 40
"""Modules of the standard library that are read without ``--data``."""


@dataclass(frozen=True, slots=True)
class Window:
    """A text that the model has read: tokens int64 [n], features float32 [n, width], and the token
    that the model chooses behind each row, int64 [n]."""

    tokens: torch.Tensor
    features: torch.Tensor
    chosen: torch.Tensor


class Head:
    """The head in plain torch, with the formula of :mod:`kinfolk_drafter_demo.head`."""

    def __init__(self, width: int, hidden: int) -> None:
        mix = torch.randn(hidden, 2 * width) * (2 * width) ** -0.5
        # With no change at first, a row foresees what the row before it says.
        out, norm = torch.zeros(width, hidden), torch.ones(width)
        self.mix, self.out, self.norm = (each.requires_grad_() for each in (mix, out, norm))

    def __call__(self, state: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Hidden rows [n, width] behind one more token each, whose embeddings are given."""
        normed = torch.nn.functional.rms_norm(embedded, self.norm.shape, self.norm, EPS)
        mixed = torch.nn.functional.silu(torch.cat([state, normed], 1) @ self.mix.T)
        return state + mixed @ self.out.T

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [self.mix, self.out, self.norm]

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """The tensors of the drafter's file."""
        weights = {MIX: self.mix, OUT: self.out, TOKEN_NORM: self.norm}
        return {name: weight.detach().numpy() for name, weight in weights.items()}


def read(loaded: LoadedModel, tokens: Sequence[int]) -> Window:
    """What the model makes of a text."""
    kv_cache, state = loaded.new_state()
    lease = kv_cache.open(len(tokens))
    kv_cache.tables.extend(lease, len(tokens))
    item = Item(lease, "train", ItemKind.PREFILL, tuple(tokens), 0)
    with torch.inference_mode():
        state.apply(kv_cache.take_operations())
        forward = loaded.model.forward(build_input_batch([item], state).batch, state)
        assert forward.features is not None
        chosen = loaded.model.logits(loaded.model.norm(forward.hidden)).argmax(1)
        return Window(torch.tensor(tokens), forward.features.float(), chosen)


def windows(texts: Sequence[Sequence[int]], seed: int) -> Iterator[Sequence[int]]:
    """Pieces of the texts, at random, without end."""
    source = np.random.default_rng(seed)
    weights = np.array([len(text) for text in texts], float)
    while True:
        text = texts[source.choice(len(texts), p=weights / weights.sum())]
        start = int(source.integers(0, max(1, len(text) - WINDOW)))
        yield text[start : start + WINDOW]


def loss_of(head: Head, loaded: LoadedModel, window: Window, rows: torch.Tensor) -> torch.Tensor:
    """How far the head is off from these rows of a window on.

    Behind row r stands token r + 1, which the model knows before the head drafts.
    """
    state, total = window.features[rows], torch.zeros(())
    for ahead in range(1, DEPTH + 1):
        with torch.no_grad():
            embedded = loaded.model.embed(window.tokens[rows + ahead]).float()
        state = head(state, embedded)
        logits = loaded.model.logits(state).float()
        total = total + torch.nn.functional.cross_entropy(logits, window.chosen[rows + ahead])
        total = total + torch.nn.functional.smooth_l1_loss(state, window.features[rows + ahead])
    return total / DEPTH


def train(
    loaded: LoadedModel,
    texts: Sequence[Sequence[int]],
    *,
    count: int,
    steps: int,
    hidden: int = 512,
    seed: int = 0,
) -> Head:
    """A head trained with so many ``steps`` on ``count`` windows of texts, given as tokens."""
    torch.manual_seed(seed)
    loaded.model.features([], final=True)
    known = [read(loaded, piece) for piece in islice(windows(texts, seed), count)]
    head = Head(known[0].features.shape[1], hidden)
    optimizer = torch.optim.AdamW(head.parameters, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=max(steps, 10), pct_start=0.1
    )
    source = np.random.default_rng(seed)
    for step in range(steps):
        window = known[int(source.integers(len(known)))]
        rows = torch.from_numpy(source.permutation(len(window.tokens) - DEPTH)[:ROWS])
        loss = loss_of(head, loaded, window, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps - 1:
            click.echo(f"step {step}  loss {loss.item():.3f}")
    return head


def library(seed: int = 0) -> list[Path]:
    """Some modules of Python's standard library."""
    found = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    chosen = np.random.default_rng(seed).permutation(len(found))[:FILES]
    return [found[index] for index in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path, nargs="+")
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--steps", type=int, default=600)
    asked = parser.parse_args()
    settings = load_settings(device="cpu", dtype="f32")
    registry = Registry.discover(settings)
    model = asked.model or bundled_model(registry)
    tokenizer = open_text(model, settings, registry)[0]
    contents = [path.read_text("utf-8", errors="replace") for path in asked.data or library()]
    texts = [tokenizer.encode(text, add_bos=False) for text in contents]
    long = [text for text in texts if len(text) >= SHORTEST]
    if not long:
        raise SystemExit(f"no text has {SHORTEST} tokens")
    loaded = load_model(model, settings, registry)
    head = train(loaded, long, count=asked.windows, steps=asked.steps)
    write(asked.out, head.tensors(), vocabulary=loaded.info.vocabulary, depth=DEPTH)
    click.echo(f"wrote {asked.out}")


if __name__ == "__main__":
    main()
