"""Prompts whose answers are checked by running them.

``textbook.json`` has the prompts in three groups. ``seen`` are tasks of the textbook, in wordings
that training never saw. ``choosing`` are other prompts of this kind, which choose the sampling.
``held_out`` are tasks that are not in the textbook.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from pocket.sampling import Completion, Sampling
from pocket.textbook import tasks
from pocket.textbook.execution import passes
from pocket.textbook.recall import draw_recall

PROMPTS = Path(__file__).with_name("textbook.json")
TOKENS = 256
GREEDY = Sampling(temperature=0.0)
FIRST_COMMAND = "def fibonacci(n):"
FIBONACCI = "\n".join(
    f"assert fibonacci({n}) == {value}" for n, value in enumerate((0, 1, 1, 2, 3, 5, 8, 13, 21))
)
FILES, CHARACTERS, ANSWER_TOKENS = 30, 10_500, 16
"""Recall: number of files, characters (3000 tokens) from constant to use, tokens of an answer."""


class Completer(Protocol):
    """Anything that continues prompts."""

    def complete(
        self, prompts: list[str], seeds: list[int], how: Sampling, count: int
    ) -> list[Completion]:
        """Continue each prompt with its seed by at most ``count`` tokens."""
        ...


def try_textbook(
    completer: Completer, group: str, how: Sampling, seeds: Sequence[int] = (0,)
) -> dict[str, Any]:
    """For every prompt of a group and every seed: whether the answer passes and ends by itself."""
    stated = json.loads(PROMPTS.read_text(encoding="utf-8"))[group]
    asked = [(prompt["text"], prompt["checks"], seed) for prompt in stated for seed in seeds]
    return _report(group, how, asked, completer)


def try_first_command(completer: Completer, how: Sampling) -> dict[str, Any]:
    """The prompt of the README with ten seeds; ``passes_ended`` counts correct, ended answers."""
    asked = [(FIRST_COMMAND, FIBONACCI, seed) for seed in range(10)]
    return _report("first command", how, asked, completer)


def try_recall(completer: Completer) -> dict[str, Any]:
    """Greedy answers to a constant that was defined some 3000 tokens before."""
    learned = [task for task in tasks.read_all() if not task.held_out]
    drawn = [draw_recall(learned, f"measured {number}", CHARACTERS) for number in range(FILES)]
    found = completer.complete(
        [recall.prompt for recall in drawn], [0] * FILES, GREEDY, ANSWER_TOKENS
    )
    right = [
        completion.text.startswith(recall.answer.rstrip("\n"))
        for recall, completion in zip(drawn, found, strict=True)
    ]
    return {"group": "recall", "passes": sum(right), "of": FILES}


def _report(
    group: str, how: Sampling, asked: list[tuple[str, str, int]], completer: Completer
) -> dict[str, Any]:
    prompts, seeds = [text for text, _, _ in asked], [seed for _, _, seed in asked]
    found = completer.complete(prompts, seeds, how, TOKENS)
    programs = [
        f"{text}{completion.text}\n\n{checks}\n"
        for (text, checks, _), completion in zip(asked, found, strict=True)
    ]
    with ThreadPoolExecutor() as pool:
        right = list(pool.map(passes, programs))
    results = [
        {
            "prompt": text,
            "seed": seed,
            "passed": passed,
            "ended": completion.ended,
            "completion": completion.text,
        }
        for (text, _, seed), passed, completion in zip(asked, right, found, strict=True)
    ]
    return {
        "group": group,
        "sampling": how.to_json(),
        "passes": sum(right),
        "passes_ended": sum(r["passed"] and r["ended"] for r in results),
        "of": len(results),
        "results": results,
    }
