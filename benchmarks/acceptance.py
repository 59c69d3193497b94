"""What drafters are worth on texts: tokens a step, drafts that are kept, tokens a second.

    python benchmarks/acceptance.py --prompts FILE.jsonl [--model FILE] [--device NAME] \\
        --draft off --draft ngram --draft mtp=FILE --draft tree:dflash=FILE

``--draft`` is ``off``, or names of drafters with commas between them, tried in this order; behind
one of them, ``=FILE`` says where its weights are. ``tree:`` before them asks for trees and
``chain:`` for chains. Every prompt is continued alone, at every temperature, after a round that is
not counted. ``equal`` counts the answers that are those of the first ``--draft``. Where another one
begins to differ, both tokens should be nearly as good: ``gap`` is by how much the worse of the two
misses the best score, in float32 on the CPU, noise included; the largest of all prompts, and
``gap p50`` their median.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kinfolk.cli.console import table
from kinfolk.engine import score
from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.sched.draft_counts import DraftCounts
from kinfolk.sched.events import Emitted
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings
from kinfolk_kernels.sample.philox import gumbel

say = sys.stdout.write


def answers(
    runtime: Runtime, prompts: Sequence[Sequence[int]], new: int, temperature: float
) -> tuple[list[tuple[int, ...]], list[Any], float]:
    """The tokens and usages of all prompts, one after the other, and the seconds behind the first
    token of each."""
    found, usages, seconds = [], [], 0.0
    for number, prompt in enumerate(prompts):
        sampling = Sampling(temperature=temperature, seed=number)
        ticket = runtime.engine.submit(Request(f"{number}", tuple(prompt), new, sampling))
        tokens: list[int] = []
        began = 0.0
        for event in ticket:
            if isinstance(event, Emitted):
                began = began or time.perf_counter()
                tokens += event.tokens
            else:
                if event.error is not None:
                    raise SystemExit(f"prompt {number}: {event.error}")
                usages.append(event.usage)
        seconds += time.perf_counter() - began
        found.append(tuple(tokens))
    return found, usages, seconds


def gap(
    reference: LoadedModel,
    prompt: Sequence[int],
    seed: int,
    temperature: float,
    one: Sequence[int],
    other: Sequence[int],
) -> float | None:
    """How far the worse of the first two tokens that differ is from the best score; None where the
    answers are equal."""
    place = next((n for n, pair in enumerate(zip(one, other, strict=True)) if len({*pair}) > 1), -1)
    if place < 0:
        return None
    known = [*prompt, *one[:place]]
    row = list(score.logits(reference, known))[-1][-1].double().cpu()
    if temperature:
        at = (torch.tensor([seed]), torch.tensor([len(known)]), torch.arange(len(row)))
        row = row / temperature + gumbel(*at)
    return float(row.max() - min(row[one[place]], row[other[place]]))


def opened(options: argparse.Namespace, draft: str) -> Runtime:
    mode, _, drafters = draft.rpartition(":")
    parts = [part.partition("=") for part in drafters.split(",")]
    file = next((Path(path) for _, _, path in parts if path), None)
    settings = load_settings(
        device=options.device,
        dtype=options.dtype,
        slots=1,
        checkpoints=0,
        context=options.context,
        draft_mode=mode or "auto",
        draft_widths=options.widths,
        draft=",".join(name for name, _, _ in parts),
        draft_model=file,
        activations=options.activations,
    )
    return Runtime.open(options.model, settings, Registry.discover(load_settings()))


def measured(options: argparse.Namespace, texts: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    first: dict[float, tuple[list[tuple[int, ...]], float]] = {}
    settings = load_settings(device="cpu", dtype="f32", slots=1, checkpoints=0, draft="off")
    exact = Runtime.open(options.model, settings, Registry.discover(load_settings()))
    for draft in options.draft:
        with opened(options, draft) as runtime:
            prompts = [runtime.tokenizer.encode(text, parse_special=False) for text in texts]
            for temperature in options.temperature:
                answers(runtime, prompts[:4], options.tokens, temperature)
                found, usages, seconds = answers(runtime, prompts, options.tokens, temperature)
                expected = first.setdefault(temperature, (found, seconds))
                counts = DraftCounts.total(usage.drafts for usage in usages)
                decoded = sum(usage.emitted - 1 for usage in usages)
                gaps = [
                    gap(exact.loaded, prompt, seed, temperature, one, other)
                    for seed, (prompt, one, other) in enumerate(
                        zip(prompts, expected[0], found, strict=True)
                    )
                ]
                missed = sorted(value for value in gaps if value is not None)
                rows.append(
                    {
                        "draft": draft,
                        "T": temperature,
                        "tokens a step": decoded / max(1, sum(usage.steps for usage in usages)),
                        "accept length": counts.accept_length,
                        "drafted": counts.drafted,
                        "kept": counts.accepted,
                        "tok/s": decoded / seconds,
                        "ratio": expected[1] / seconds,
                        "equal": gaps.count(None),
                        "gap p50": missed[len(missed) // 2] if missed else 0.0,
                        "gap": missed[-1] if missed else 0.0,
                        "failures": counts.failures,
                        "per place": [round(part, 3) for part in counts.per_position],
                    }
                )
        gc.collect()
    exact.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draft", action="append", required=True)
    parser.add_argument("--temperature", type=float, action="append")
    parser.add_argument("--widths", default="cost", choices=["cost", "fixed", "confidence"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--activations", default="int8", choices=["int8", "f16"])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.temperature = options.temperature or [0.0, 0.8]
    lines = options.prompts.read_text().splitlines()[: options.count]
    rows = measured(options, [json.loads(line)["text"] for line in lines])
    shown = [name for name in rows[0] if name != "per place"]
    cells = [
        [f"{row[name]:.4g}" if isinstance(row[name], float) else f"{row[name]}" for name in shown]
        for row in rows
    ]
    say(f"{table([shown, *cells])}\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
