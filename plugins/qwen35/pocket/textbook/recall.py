"""Long files whose end needs what stands at their head: constants, defined once and asserted again.

They teach the model to copy over thousands of tokens, and their like measure whether it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pocket.textbook.forms import Style, draw_names, import_lines, write_unit
from pocket.textbook.tasks import Task

SHORTEST, LONGEST = 200, 12_500
"""Characters between the constants and their use; 12 500 are about 3500 tokens."""
FIRST = (
    "ACCESS", "ACCOUNT", "BACKUP", "BATCH", "BUFFER", "CACHE", "CHUNK", "CLIENT", "DATABASE",
    "DEFAULT", "DISPLAY", "DOWNLOAD", "ERROR", "EXPORT", "FRAME", "GATEWAY", "GRID", "IMAGE",
    "INDEX", "LICENSE", "LOGIN", "MACHINE", "MASTER", "MAX", "MIN", "NETWORK", "ORDER",
    "PACKET", "PAYMENT", "PRIMARY", "PRINTER", "PROXY", "QUEUE", "REPORT", "REQUEST", "ROBOT",
    "ROOT", "SAMPLE", "SECRET", "SENSOR", "SERVER", "SESSION", "SIGNAL", "START", "STORAGE",
    "SYSTEM", "TARGET", "TOTAL", "TRAIN", "UPLOAD", "USER", "VAULT", "WINDOW", "WORKER",
)  # fmt: skip
SECOND = (
    "ADDRESS", "CODE", "COLOR", "COUNT", "DELAY", "DEPTH", "FACTOR", "FORMAT", "HEIGHT", "HOST",
    "ID", "INTERVAL", "KEY", "LABEL", "LEVEL", "LIMIT", "MODE", "NAME", "NUMBER", "OFFSET",
    "PATH", "PORT", "PREFIX", "RATE", "RETRIES", "SCALE", "SEED", "SIZE", "SPEED", "STEPS",
    "TIMEOUT", "TOKEN", "VERSION", "WEIGHT", "WIDTH",
)  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Recall:
    """A file up to where a constant is used again, and the text that has to follow."""

    prompt: str
    answer: str


def write_recall(tasks: Sequence[Task], seed: str) -> str:
    """A whole file: constants, programs, and the constants once more."""
    random = Random(seed)
    constants = draw_constants(random)
    distance = SHORTEST * (LONGEST / SHORTEST) ** random.random()
    used = random.sample(list(constants.items()), random.randint(1, len(constants)))
    return _head(constants, tasks, distance, random) + _use(used, random)


def draw_recall(tasks: Sequence[Task], seed: str, characters: int) -> Recall:
    """A prompt whose last line begins to assert the first constant of its head.

    The space before the value belongs to the answer: the tokenizer joins it to a quotation mark.
    """
    random = Random(seed)
    constants = draw_constants(random)
    name, value = next(iter(constants.items()))
    head = _head(constants, tasks, characters, random)
    return Recall(f"{head}assert {name} ==", f" {value}\n")


def draw_constants(random: Random) -> dict[str, str]:
    """Between one and six constants: name and source of the value."""
    names = dict.fromkeys(
        f"{random.choice(FIRST)}_{random.choice(SECOND)}" for _ in range(random.randint(1, 6))
    )
    return {name: _value(random) for name in names}


def _head(
    constants: dict[str, str], tasks: Sequence[Task], characters: float, random: Random
) -> str:
    """A file up to where its constants are used: they, and so many characters of solutions."""
    units, lines = [], set[str]()
    while characters > 0:
        task = random.choice(tasks)
        wording = random.choice(task.wordings)
        named = draw_names(task, random.choice(task.solutions), wording, random)
        units.append(write_unit(named, Style.draw(random)) + "\n\n\n")
        lines.update(named.imports)
        characters -= len(units[-1])
    body = "".join(units)
    imports = import_lines(body, tuple(lines))
    stated = "".join(f"{name} = {value}\n" for name, value in constants.items())
    return f"{imports}\n\n{stated}\n\n{body}" if imports else f"{stated}\n\n{body}"


def _use(constants: Sequence[tuple[str, str]], random: Random) -> str:
    lines = [f"assert {name} == {value}" for name, value in constants]
    form = random.randrange(3)
    if form == 0:
        return "def test_constants():\n" + "".join(f"    {line}\n" for line in lines)
    if form == 1:
        return "".join(f"print({name})  # {value}\n" for name, value in constants)
    return "".join(f"{line}\n" for line in lines)


def _value(random: Random) -> str:
    kind = random.randrange(4)
    if kind == 0:
        return str(random.randrange(10 ** random.randint(1, 6)))
    if kind == 1:
        return f"{random.randrange(1000)}.{random.randrange(1, 100)}"
    letters = "".join(random.choice(LETTERS) for _ in range(random.randint(3, 9)))
    if kind == 2:
        return f'"{letters}"'
    return f'"{letters}-{random.randrange(10_000)}"'
