"""The quality cost of rounding: the bundled model on held-out text, against float32 on the CPU.

    python benchmarks/quality.py [--windows N] [--window TOKENS] [--json FILE] [--device DEVICE]
                                 [--way NAME]…

The text is the source of click, which the bundled model was not trained on. Prints for every way of
computing: the mean Kullback-Leibler divergence from float32 over all positions, in nats, the
perplexity, and its difference from float32's. The rounding of a product depends on the rows of a
step, so each way states its rows; decoding has few.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import files
from pathlib import Path
from typing import Any

import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.engine.text import open_text
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

say = sys.stdout.write


@dataclass(frozen=True)
class Way:
    """A way of computing: settings, and the rows of a step."""

    name: str
    rows: int
    settings: dict[str, Any] = field(default_factory=dict)


HALF = {"activations": "f16"}
WAYS = (
    Way("slices of a prompt", 1024),
    Way("slices, numbers in float16", 1024, {"dtype": "f16"}),
    Way("slices, matrices as numbers", 1024, {"weights": "dense"}),
    Way("keys and values bf16", 1024, {"kv_codec": "bf16"}),
    Way("keys and values f16", 1024, {"kv_codec": "f16"}),
    Way("keys and values q8_0", 1024, {"kv_codec": "q8_0"}),
    Way("keys and values q4_0", 1024, {"kv_codec": "q4_0"}),
    Way("keys q8_0, values q4_0", 1024, {"kv_codec": "q8_0", "v_codec": "q4_0"}),
    Way("f16 activations, 16 rows", 16, HALF),
    Way("int8 activations, 16 rows", 16),
    Way("int8 activations, 4 rows", 4),
    Way("int8 activations, 1 row", 1),
    Way("f16 activations, 1 row", 1, HALF),
)


@dataclass(frozen=True)
class Quality:
    """Means over ``positions``; ``perplexity_change`` is relative to float32's."""

    way: str
    positions: int
    divergence: float
    worst_divergence: float
    perplexity: float
    perplexity_change: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window", type=int, default=1024, help="tokens")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", action="append", help="of computing; default: all")
    options = parser.parse_args()
    ways = [way for way in WAYS if not options.way or way.name in options.way]
    if unknown := set(options.way or ()) - {way.name for way in WAYS}:
        parser.error(f"unknown {sorted(unknown)}; there are {[way.name for way in WAYS]}")
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    families = [provided.value for provided in registry.families.values()]
    path = next(path for family in families if (path := family.bundled_model()))
    windows = list(held_out(path, registry, options.windows, options.window))
    plain = {"device": "cpu", "dtype": "f32", "slots": 1, "context": options.window}
    exact = list(scores(path, registry, windows, plain, options.window))
    qualities = []
    for way in ways:
        settings = {**plain, "device": options.device, "dtype": None, **way.settings}
        qualities.append(
            compared(way, windows, exact, scores(path, registry, windows, settings, way.rows))
        )
        say(line(qualities[-1]))
        sys.stdout.flush()
    if options.json:
        options.json.write_text(
            json.dumps([asdict(quality) for quality in qualities], indent=1) + "\n"
        )


def held_out(path: Path, registry: Registry, count: int, length: int) -> Iterator[list[int]]:
    """``count`` windows of ``length`` tokens of click's modules, in order."""
    tokenizer, _, _ = open_text(path, load_settings(), registry)
    modules = sorted(str(file.locate()) for file in files("click") or () if file.suffix == ".py")
    tokens = [token for name in modules for token in tokenizer.encode(Path(name).read_text())]
    if len(tokens) < count * length:
        raise SystemExit(f"the text has {len(tokens)} tokens, {count} x {length} are wanted")
    for number in range(count):
        yield tokens[number * length : (number + 1) * length]


def scores(
    path: Path, registry: Registry, windows: list[list[int]], settings: dict[str, Any], rows: int
) -> Iterator[torch.Tensor]:
    """float32 logits [tokens, vocabulary] of each window, on the model's device."""
    loaded = load_model(path, load_settings(**settings), registry)
    for tokens in windows:
        yield torch.cat(list(logits(loaded, tokens, chunk=rows)))


def compared(
    way: Way,
    windows: list[list[int]],
    exact: list[torch.Tensor],
    approximate: Iterator[torch.Tensor],
) -> Quality:
    divergences, losses, exact_losses = [], [], []
    for tokens, one, other in zip(windows, exact, approximate, strict=True):
        p = one.to(other.device).double().log_softmax(1)
        q = other.double().log_softmax(1)
        divergences.append((p.exp() * (p - q)).sum(1))
        following = torch.tensor(tokens[1:], device=other.device)[:, None]
        losses.append(-q[:-1].gather(1, following))
        exact_losses.append(-p[:-1].gather(1, following))
    divergence = torch.cat(divergences)
    loss, exact_loss = (torch.cat(parts).mean().item() for parts in (losses, exact_losses))
    return Quality(
        way.name,
        len(divergence),
        divergence.mean().item(),
        divergence.max().item(),
        math.exp(loss),
        math.expm1(loss - exact_loss),
    )


def line(quality: Quality) -> str:
    return (
        f"{quality.way:28} {quality.positions} positions, KL {quality.divergence:.2e} "
        f"(worst {quality.worst_divergence:.1e}), perplexity {quality.perplexity:.4f} "
        f"({100 * quality.perplexity_change:+.3f} %)\n"
    )


if __name__ == "__main__":
    main()
