"""Whether compressed prompts keep what their question is about, without a GPU.

    python benchmarks/prompt_needles.py [--drafter FILE] [--functions N] [--each N] [--ratios .1,.2]
        [--json FILE]

A prompt is a file of N small Python functions and a line that calls one of them, the needle, whose
name stands nowhere else. It is found if all of its passages are kept: by the drafter's scores
alone, by these and anchors, as prompts are compressed, and by random scores. Without a drafter it
is the bundled model.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.compress.passages import PASSAGE_TOKENS, Numbers, Tokens, select_passages
from kinfolk.engine.prompt_scorer import PromptScorer
from kinfolk.registry import Registry
from kinfolk.sched.prompt_scoring import ScoringRequest
from kinfolk.settings import load_settings

say = sys.stdout.write

DEPTHS = (0.1, 0.3, 0.5, 0.7)
NAMES = ("alpha", "beta", "gamma", "delta", "total", "count", "value", "index", "price", "width")
NEEDLES = ("router", "kernel", "orchid", "pepper", "harbor", "lantern")


@dataclass(frozen=True)
class Needle:
    """``tokens`` of the functions, the ``query`` behind them, and the passages of the needle."""

    tokens: Tokens
    query: Tokens
    passages: frozenset[int]


@dataclass(frozen=True)
class Found:
    """Of ``cases`` needles, so many found, and the mean part of the passages that was kept."""

    ratio: float
    by: str
    cases: int
    found: int
    kept: float


def needle(scorer: PromptScorer, functions: int, depth: float, seed: int) -> Needle:
    draw, encode = random.Random(seed), scorer.tokenizer.encode
    texts = [
        f"def {draw.choice(NAMES)}_{number}(x):\n"
        f"    return x * {draw.randint(2, 99)} + {draw.randint(1, 9)}\n"
        for number in range(functions)
    ]
    at, name = int(depth * functions), f"{draw.choice(NEEDLES)}_limit"
    texts.insert(at, f"def {name}():\n    return {draw.randint(1000, 9999)}\n")
    before, through = (len(encode("\n".join(texts[:end]))) for end in (at, at + 1))
    body = encode("\n".join(texts))
    query = encode("\n".join(texts) + f"\n\nprint({name}())  # prints")[len(body) - 1 :]
    passages = frozenset(token // PASSAGE_TOKENS for token in range(before, through))
    return Needle(np.array(body[:-1], np.int64), np.array(query, np.int64), passages)


@torch.inference_mode()
def scores(scorer: PromptScorer, case: Needle) -> Numbers:
    books = scorer.books()
    text = (*case.tokens.tolist(), *case.query.tolist())
    books.submit(ScoringRequest("text", text))
    while (planned := books.plan()) is not None:
        books.commit(scorer.launch(planned).collect())
    (event,) = books.take_events()
    if event.scores is None:
        raise RuntimeError(event.error)
    return event.scores[: len(case.tokens)]


def measure(
    scorer: PromptScorer, functions: int, each: int, ratios: Sequence[float]
) -> list[Found]:
    """A figure for each ratio and way to score."""
    cases = [needle(scorer, functions, depth, s) for depth in DEPTHS for s in range(each)]
    scored = [scores(scorer, case) for case in cases]
    noise = [
        np.random.default_rng(n).random(len(s)).astype(np.float32) for n, s in enumerate(scored)
    ]
    found = []
    for ratio in ratios:
        for by, values, asks in (
            ("random", noise, False),
            ("scores", scored, False),
            ("scores and anchors", scored, True),
        ):
            kept = [
                select_passages(case.tokens, of_case, ratio, case.query if asks else case.query[:0])
                for case, of_case in zip(cases, values, strict=True)
            ]
            hits = sum(case.passages <= set(k) for case, k in zip(cases, kept, strict=True))
            share = sum(
                len(k) * PASSAGE_TOKENS / len(case.tokens)
                for case, k in zip(cases, kept, strict=True)
            )
            found.append(Found(ratio, by, len(cases), hits, round(share / len(cases), 3)))
    return found


def main(arguments: Sequence[str] | None = None) -> list[Found]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--functions", type=int, default=110)
    parser.add_argument("--each", type=int, default=6, help="needles at each depth")
    parser.add_argument("--ratios", default=".05,.1,.2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    settings = load_settings(device="cpu", dtype="f32")
    registry = Registry.discover(settings, reserved_commands=tuple(BUILT_IN))
    path = options.drafter or registry.bundled_model()
    if path is None:
        parser.error("no installed family ships a model: name one with --drafter")
    scorer = PromptScorer.open(path, settings, registry)
    found = measure(
        scorer, options.functions, options.each, list(map(float, options.ratios.split(",")))
    )
    scorer.close()
    say("| ratio | passages kept by | kept | needles found |\n|---|---|---|---|\n")
    for each in found:
        hits = f"{each.found} of {each.cases}"
        say(f"| {each.ratio} | {each.by} | {100 * each.kept:.0f} % | {hits} |\n")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return found


if __name__ == "__main__":
    main()
