"""Whether the needle model answers through ``kinfolk serve`` when little of its text is resident.

    PYTHONPATH=plugins/qwen35 python -m needle.train --out OUT
    python benchmarks/needles.py --model OUT/needle.gguf [--json FILE] [--parallel N]

Each row is a server of its own. A text of ``--lengths`` tokens has one needle, a fact of 32 words,
or with decoys four facts and four others whose keys begin like theirs; it ends with the key. An
answer is right if all of its words are. Rows:

all       everything on the device
qk, lru   ``--kvflash`` with a budget of ``--resident`` percent of the text, in whole chunks
pflash    the prompt compressed to ``--keep`` of it, with the same model as drafter

A fact lies in one chunk, as the smallest budget has one place for a chunk that is chosen.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "plugins" / "qwen35"))

from needle import text  # noqa: E402
from needle.config import VALUE_WORDS  # noqa: E402

from kinfolk.cli.main import BUILT_IN  # noqa: E402
from kinfolk.engine.text import open_text  # noqa: E402
from kinfolk.gguf.file import GGUFFile  # noqa: E402
from kinfolk.registry import Registry  # noqa: E402
from kinfolk.residency.rules import least_chunks  # noqa: E402
from kinfolk.settings import load_settings  # noqa: E402
from kinfolk.text.tokenizer import Tokenizer  # noqa: E402
from kinfolk.types import CHUNK_POSITIONS  # noqa: E402

say = sys.stdout.write

FACT_DEPTHS = (0.1, 0.4, 0.6, 0.85)
DECOY_DEPTHS = (0.17, 0.47, 0.67, 0.92)
SINK, TAIL = 1, 4
"""Chunks of the qwen35 family that always stay."""
GOALS = {"needle": 1.0, "decoys": 60 / 64, "pflash": 0.9}
ANSWER_SECONDS = 600
START_SECONDS = 300


@dataclass(frozen=True)
class Question:
    prompt: str
    value: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """What a server is asked. ``resident`` is in chunks, ``keep`` a part of the prompt."""

    policy: str
    kind: str
    length: int
    depth: float | None = None
    resident: int | None = None
    keep: float | None = None

    @property
    def goal(self) -> float | None:
        """The part of answers that is to be right; ``None`` where the row is for comparison."""
        if self.policy == "pflash":
            return GOALS["pflash"]
        return GOALS[self.kind] if self.policy == "qk" else None

    @property
    def server(self) -> tuple[object, ...]:
        """Rows that are equal in this are asked of one server."""
        return self.policy, self.resident, self.keep, self.length


@dataclass
class Result:
    """``right`` answers of ``asked``, and ``words`` that are right; ``inexact`` answers missed some
    of their text, ``in_full`` prompts were not compressed."""

    row: Row
    asked: int = 0
    right: int = 0
    words: int = 0
    inexact: int = 0
    in_full: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def met(self) -> bool | None:
        goal = self.row.goal
        return None if goal is None else bool(self.asked) and self.right >= goal * self.asked

    def to_json(self) -> dict[str, Any]:
        row = asdict(self.row)
        resident = self.row.resident
        if resident is not None:
            row["resident_percent"] = round(100 * resident * CHUNK_POSITIONS / self.row.length, 2)
        own = {name: value for name, value in vars(self).items() if name != "row"}
        return {**row, **own, "goal": self.row.goal, "met": self.met}


# -- questions -----------------------------------------------------------------------------------


class Questions:
    """Texts for the words of a model's tokenizer; ``seed`` decides all of them."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.lexicon = text.Lexicon.of(tokenizer.encode)

    def of(self, row: Row, count: int) -> list[Question]:
        """So many questions. Those with decoys come in fours, one text each."""
        random = np.random.default_rng((self.seed, row.length, round(1000 * (row.depth or 0))))
        writer = text.Writer(self.lexicon, VALUE_WORDS, random)
        found: list[Question] = []
        while len(found) < count:
            if row.kind == "decoys":
                facts = [writer.fact() for _ in FACT_DEPTHS]
                decoys = [writer.decoy(fact) for fact in facts]
                depths = (*FACT_DEPTHS, *DECOY_DEPTHS)
            else:
                facts, decoys, depths = [writer.fact()], [], (row.depth or 0.5,)
            length = row.length - len(writer.asked(facts[0]))
            places = {
                self._place(writer, length, depth): fact
                for depth, fact in zip(depths, (*facts, *decoys), strict=True)
            }
            hay = writer.haystack(length, places)
            for fact in facts:
                ids = np.concatenate([hay, writer.asked(fact)])
                found.append(Question(self._spelled(ids), self._words(fact.value)))
        return found[:count]

    def _place(self, writer: text.Writer, length: int, depth: float) -> int:
        """Where a fact begins: inside one chunk, which is neither a first nor a last one."""
        chunks = length // CHUNK_POSITIONS
        chunk = SINK + round(depth * (chunks - SINK - TAIL - 1))
        return chunk * CHUNK_POSITIONS + int(
            writer.random.integers(CHUNK_POSITIONS - writer.unit + 1)
        )

    def _spelled(self, ids: text.Ids) -> str:
        spelled = self.tokenizer.decode(ids.tolist())
        if list(self.tokenizer.encode(spelled)) != ids.tolist():
            raise ValueError("the tokenizer does not read what it has written")
        return spelled

    def _words(self, ids: text.Ids) -> tuple[str, ...]:
        return tuple(self.tokenizer.decode(ids.tolist()).split())


# -- the server ----------------------------------------------------------------------------------


@contextmanager
def serving(options: Sequence[object]) -> Iterator[str]:
    """The URL of ``kinfolk serve`` with these options. Raises ``RuntimeError`` with what it said if
    it does not start."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfolk", "serve", "--port", "0", *map(str, options)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"KINFOLK_LOG_LEVEL": "warning"},
    )
    assert process.stderr is not None
    said: list[str] = []
    late = threading.Timer(START_SECONDS, process.kill)
    late.start()
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"(http://\S+)/v1", line):
                break
        else:
            raise RuntimeError(f"kinfolk serve did not start:\n{''.join(said)}")
        late.cancel()
        # What it says later must be read, or it would wait.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[1]
    finally:
        late.cancel()
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answer(url: str, question: Question) -> dict[str, Any]:
    """Raises ``RuntimeError`` with the server's words if it refuses."""
    body = {"prompt": question.prompt, "max_tokens": VALUE_WORDS, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
            found: dict[str, Any] = json.load(response)
            return found
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code}: {error.read().decode()}") from None


def server_options(options: argparse.Namespace, row: Row) -> list[object]:
    found: list[object] = ["-m", options.model, "--context", row.length + 2 * CHUNK_POSITIONS]
    found += ["--device", options.device, "--slots", options.slots, "--checkpoints", 0]
    found += ["--draft", "off", "--max-queue", 1024]
    if row.resident is not None:
        found += ["--kvflash", row.resident * CHUNK_POSITIONS, "--kvflash-policy", row.policy]
        found += ["--kvflash-burst", burst(row.resident)]
        if row.policy == "qk":
            found += ["--kvflash-layers", attention_layers(options.model)]
    if row.keep is not None:
        found += ["--prefill-compression", "always", "--prefill-compression-keep-ratio", row.keep]
        found += ["--prefill-compression-drafter", options.model]
    if options.memory is not None:
        found += ["--memory", options.memory]
    return found


def attention_layers(model: Path) -> int:
    """All of them choose: of so few, half could be those that look for nothing."""
    with GGUFFile.open(model) as file:
        keys = file.metadata
        name = keys.string("general.architecture")
        layers = keys.integer(f"{name}.block_count")
        return int(layers // keys.integer(f"{name}.full_attention_interval"))


def burst(resident: int) -> int:
    """Spare chunks of a budget: few, as those that are chosen have what is left."""
    return max(1, resident // 8)


# -- the table -----------------------------------------------------------------------------------


def planned(options: argparse.Namespace) -> list[Row]:
    rows = []
    for length in options.lengths:
        kinds = [("needle", depth) for depth in options.depths] + [("decoys", None)]
        for policy in options.policies:
            if policy == "pflash":
                rows += [Row(policy, "needle", length, keep=keep) for keep in options.keep]
                continue
            budgets = [None] if policy == "all" else [chunks(length, r) for r in options.resident]
            rows += [Row(policy, k, length, d, chunk) for chunk in budgets for k, d in kinds]
    return rows


def chunks(length: int, percent: float) -> int:
    """The budget nearest to so many percent of a text. Raises ``ValueError`` if nothing could be
    chosen in it."""
    found = round(length * percent / 100 / CHUNK_POSITIONS)
    least = least_chunks(SINK, TAIL, burst(found)) if found else 1
    if found < least:
        raise ValueError(
            f"{percent} % of {length} tokens are {found} chunks, and a budget needs {least}: "
            "choose a larger --resident or longer texts"
        )
    return found


def count_of(options: argparse.Namespace, row: Row) -> int:
    if row.policy == "pflash":
        return int(options.compressed)
    return int(options.decoys if row.kind == "decoys" else options.each)


def measured(options: argparse.Namespace, url: str, row: Row, questions: Questions) -> Result:
    result = Result(row)
    asked = questions.of(row, count_of(options, row))
    if row.policy == "pflash":  # the depths in turn
        turns = [questions.of(Row("", "needle", row.length, d), len(asked)) for d in options.depths]
        asked = [turns[number % len(turns)][number] for number in range(len(asked))]
    began = time.monotonic()
    with ThreadPoolExecutor(options.slots) as pool:
        for question, given in zip(asked, pool.map(lambda q: tried(url, q), asked), strict=True):
            result.asked += 1
            if isinstance(given, str):
                result.errors.append(given)
                continue
            words = given["choices"][0]["text"].split()
            same = sum(a == b for a, b in zip(words, question.value, strict=False))
            result.words += same
            result.right += same == len(question.value)
            usage = given["usage"]
            result.inexact += usage.get("exact") is False
            compressed = usage.get("prefill_compression")
            result.in_full += compressed is not None and compressed["skipped"] is not None
    result.seconds = round(time.monotonic() - began, 2)
    return result


def tried(url: str, question: Question) -> dict[str, Any] | str:
    try:
        return answer(url, question)
    except (RuntimeError, OSError) as error:
        return str(error)


def line(result: Result) -> str:
    row, goal = result.row, result.row.goal
    what = f"{row.policy:7}{row.kind:7}{row.length:7}"
    if row.resident is not None:
        what += f"{100 * row.resident * CHUNK_POSITIONS / row.length:6.1f} %"
    if row.keep is not None:
        what += f"  keep {row.keep}"
    if row.depth is not None:
        what += f"  depth {row.depth}"
    wanted = "" if goal is None else f" (goal {math.ceil(goal * result.asked - 1e-9)})"
    words = result.words / max(1, VALUE_WORDS * result.asked)
    notes = "" if result.met is not False else "  MISSED"
    notes += f"  {len(result.errors)} failed: {result.errors[0]}" if result.errors else ""
    notes += f"  {result.in_full} in full" if result.in_full else ""
    return (
        f"{what:42}{result.right:4} / {result.asked}{wanted}, {100 * words:.1f} % of the words, "
        f"{result.seconds:.1f} s{notes}\n"
    )


def numbers(kind: type) -> Any:
    return lambda given: [kind(part) for part in given.split(",")]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="needle.gguf of needle.train")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lengths", type=numbers(int), default=[8192, 32_768])
    parser.add_argument("--resident", type=numbers(float), default=[6.0, 9.0], help="percent")
    parser.add_argument("--depths", type=numbers(float), default=[0.1, 0.5, 0.9])
    parser.add_argument("--keep", type=numbers(float), default=[0.05, 0.1])
    parser.add_argument("--policies", type=numbers(str), default=["all", "qk", "lru", "pflash"])
    parser.add_argument("--each", type=int, default=16, help="needles of a row")
    parser.add_argument("--decoys", type=int, default=64, help="questions of a row with decoys")
    parser.add_argument("--compressed", type=int, default=10, help="needles of a pflash row")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--parallel", type=int, default=1, help="servers at once")
    parser.add_argument("--memory", type=float, help="GiB of the device for each server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="written anew as each row ends")
    options = parser.parse_args(arguments)
    unknown = set(options.policies) - {"all", "qk", "lru", "pflash"}
    if unknown:
        parser.error(f"--policies: {', '.join(sorted(unknown))} is none of all, qk, lru, pflash")
    return options


def main(arguments: Sequence[str] | None = None) -> list[Result]:
    """The results; raises ``SystemExit`` if a server did not start."""
    options = parsed(arguments)
    settings = load_settings()
    registry = Registry.discover(settings, reserved_commands=tuple(BUILT_IN))
    tokenizer, _, _ = open_text(options.model, settings, registry)
    questions = Questions(tokenizer, options.seed)
    servers: dict[tuple[object, ...], list[Row]] = {}
    for row in planned(options):
        servers.setdefault(row.server, []).append(row)
    results: list[Result] = []
    lock = threading.Lock()

    def run(rows: Sequence[Row]) -> str:
        try:
            with serving(server_options(options, rows[0])) as url:
                for row in rows:
                    result = measured(options, url, row, questions)
                    with lock:
                        results.append(result)
                        say(line(result))
                        sys.stdout.flush()
                        write(options, results)
        except RuntimeError as error:
            return f"{rows[0]}: {error}"
        return ""

    with ThreadPoolExecutor(options.parallel) as pool:
        problems = [problem for problem in pool.map(run, servers.values()) if problem]
    if problems:
        raise SystemExit("\n".join(problems))
    return results


def write(options: argparse.Namespace, results: Sequence[Result]) -> None:
    if options.json is None:
        return
    taken = {name: str(value) for name, value in vars(options).items()}
    content = {"options": taken, "rows": [result.to_json() for result in results]}
    options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
