"""Measure the pocket model: ``python -m pocket.evaluate bits|prompts|textbook|recall|choose ...``.

The model is a Hugging Face directory, which the training model reads, or a GGUF file, which kinfolk
runs as it does for a user. Results are JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from pocket import data, exercises, scoring, tokenizer
from pocket.command import CommandCompleter, RuntimeScorer
from pocket.criterion import judge
from pocket.exercises import Completer
from pocket.export import read
from pocket.model import PocketModel
from pocket.sampling import Completion, Sampling, complete
from tokenizers import Tokenizer

log = logging.getLogger("pocket.evaluate")

PROMPTS = Path(__file__).with_name("prompts.json")
GRID = (
    *(Sampling(t, top_p=0.95) for t in (0.2, 0.4, 0.6, 0.8)),
    *(Sampling(t, top_p=0.95, repetition=1.05) for t in (0.2, 0.4, 0.6, 0.8)),
    *(Sampling(t, min_p=0.1) for t in (0.6, 1.0)),
)


@dataclass(frozen=True, slots=True)
class TorchCompleter:
    """Completes prompts with the training model."""

    model: PocketModel
    tokenizer: Tokenizer

    def complete(
        self, prompts: list[str], seeds: list[int], how: Sampling, count: int
    ) -> list[Completion]:
        end = tokenizer.end_of_text(self.tokenizer)
        return complete(self.model, self.tokenizer, prompts, seeds, how, count, end)


def try_prompts(completer: Completer, group: str, how: Sampling) -> dict[str, Any]:
    """Complete every prompt of a group with every seed, and judge the completions."""
    stated = json.loads(PROMPTS.read_text(encoding="utf-8"))
    pairs = list(product(stated[group], stated["seeds"]))
    prompts, seeds = [p for p, _ in pairs], [s for _, s in pairs]
    found = completer.complete(prompts, seeds, how, stated["tokens"])
    results = []
    for prompt, seed, completion in zip(prompts, seeds, found, strict=True):
        verdict = judge(prompt, completion.text, completion.tokens, completion.ended)
        results.append(
            {
                "prompt": prompt,
                "seed": seed,
                "passed": verdict.passed,
                "parses": verdict.parses,
                "statements": verdict.statements,
                "repeats": verdict.repeats,
                "ended": completion.ended,
                "completion": completion.text,
            }
        )
    passes = sum(bool(result["passed"]) for result in results)
    return {
        "group": group,
        "sampling": how.to_json(),
        "passes": passes,
        "of": len(results),
        "results": results,
    }


def choose_sampling(completer: Completer) -> Iterator[dict[str, Any]]:
    """Passes of both groups of choosing prompts, for each sampling of ``GRID``."""
    for how in GRID:
        report = try_prompts(completer, "choosing", how)
        book = exercises.try_textbook(completer, "choosing", how)
        yield {
            **{key: report[key] for key in ("sampling", "passes", "of")},
            "textbook": {key: book[key] for key in ("passes", "passes_ended", "of")},
        }


def measure_bits(scorer: scoring.Scorer, folder: Path, file: Path, limit: int | None) -> Any:
    """Bits per byte of the texts of a held-out file."""
    plain = tokenizer.without_specials(folder / "tokenizer.json")
    end = tokenizer.end_of_text(Tokenizer.from_file(str(folder / "tokenizer.json")))
    entries = data.read_texts(file, limit)
    scores = scoring.score(scorer, plain, end, [entry.text for entry in entries])
    whole = scoring.total(scores)
    parts = {
        name: scoring.total(
            part for entry, part in zip(entries, scores, strict=True) if entry.distribution == name
        )
        for name in sorted({entry.distribution for entry in entries})
    }
    return {
        "bits_per_byte": whole.bits_per_byte,
        "files": len(entries),
        "bytes": whole.bytes,
        "tokens": whole.tokens,
        "distributions": {
            name: {"bits_per_byte": part.bits_per_byte, "bytes": part.bytes}
            for name, part in parts.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=tuple(MEASURES))
    parser.add_argument("--hf", type=Path, required=True, help="exported directory (tokenizer)")
    parser.add_argument("--gguf", type=Path, help="measure this file instead of the directory")
    parser.add_argument("--held-out", type=Path, help="held_out.jsonl.gz of pocket.data")
    parser.add_argument("--limit", type=int, help="bytes of held-out text")
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--min-p", type=float, default=0.0)
    parser.add_argument("--repetition", type=float, default=1.0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    json.dump(run(arguments), sys.stdout, indent=1)
    sys.stdout.write("\n")


def run(arguments: argparse.Namespace) -> Any:
    """Run the requested measurement; its result is JSON."""
    return MEASURES[arguments.what](arguments)


def _bits(arguments: argparse.Namespace) -> Any:
    if arguments.held_out is None:
        raise SystemExit("bits needs --held-out FILE, written by python -m pocket.data")
    return measure_bits(_scorer(arguments), arguments.hf, arguments.held_out, arguments.limit)


def _textbook(arguments: argparse.Namespace) -> Any:
    """All figures of the model card about the textbook."""
    completer, how = _completer(arguments), _sampling(arguments)
    return [
        exercises.try_textbook(completer, "seen", exercises.GREEDY),
        exercises.try_textbook(completer, "seen", how),
        exercises.try_textbook(completer, "held_out", exercises.GREEDY),
        exercises.try_first_command(completer, how),
    ]


MEASURES: Final[Mapping[str, Callable[[argparse.Namespace], Any]]] = {
    "bits": _bits,
    "prompts": lambda given: try_prompts(_completer(given), "card", _sampling(given)),
    "textbook": _textbook,
    "recall": lambda given: exercises.try_recall(_completer(given)),
    "choose": lambda given: list(choose_sampling(_completer(given))),
}


def _sampling(arguments: argparse.Namespace) -> Sampling:
    return Sampling(
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition=arguments.repetition,
    )


def _model(folder: Path) -> PocketModel:
    if not torch.cuda.is_available():
        return read(folder)
    model = read(folder, "cuda")
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.bfloat16()
    return model


def _scorer(arguments: argparse.Namespace) -> scoring.Scorer:
    if arguments.gguf is not None:
        return RuntimeScorer(arguments.gguf)
    return scoring.TorchScorer(_model(arguments.hf), 65_536 if torch.cuda.is_available() else 8192)


def _completer(arguments: argparse.Namespace) -> Completer:
    words = Tokenizer.from_file(str(arguments.hf / "tokenizer.json"))
    if arguments.gguf is not None:
        return CommandCompleter(arguments.gguf, words)
    return TorchCompleter(_model(arguments.hf), words)


if __name__ == "__main__":
    main()
