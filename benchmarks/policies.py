"""What answers are worth with each ``--kvflash-policy``: the bundled model, in the engine.

    python benchmarks/policies.py [--each N] [--depths .1,.5,.9] [--policies lru,qk,drafter,oracle]
                                  [--device cpu] [--seed N] [--json FILE]

Texts are those of ``benchmarks/recall.py``: 63 chunks with a needle, to which their end goes back.
Each is answered with everything on the device first, and then with a budget, of which two chunks
can be chosen. A token is right if the first answer has the same one in its place; answers have
eight. With ``drafter`` the model reads itself along. Bytes are those of the device for scores, and
for another model with its state; microseconds are the host's for a choice, which with ``oracle`` is
all of it, and with ``drafter`` not the reading. ``benchmarks/kernels/chunks.py`` has those of a
device.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recall import CHUNKS, KINDS, Text, texts

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.types import CHUNK_POSITIONS

say = sys.stdout.write

POLICIES = ("lru", "qk", "drafter", "oracle")
BURST, CHOSEN = 2, 2
BUDGET = (1 + 4 + BURST + CHOSEN + 1) * CHUNK_POSITIONS
"""A first chunk, four last ones, spare ones, chosen ones, and one for a step."""

ANSWER = 8


@dataclass(frozen=True)
class Row:
    """``right`` of ``total`` tokens, by kind of text."""

    policy: str
    device_bytes: int
    choice_us: float
    selections: int
    recalled: int
    right: dict[str, int]
    total: dict[str, int]


def opened(path: Path, registry: Registry, device: str, **more: Any) -> Runtime:
    settings = load_settings(
        device=device,
        slots=1,
        context=(CHUNKS + 1) * CHUNK_POSITIONS,
        checkpoints=0,
        draft="off",
        **({"dtype": "f32"} if device == "cpu" else {}),
        **more,
    )
    return Runtime.open(path, settings, registry)


def answers(runtime: Runtime, cases: Sequence[Text]) -> list[list[int]]:
    """The first tokens of the answer to each text."""
    found = []
    for number, text in enumerate(cases):
        tokens: list[int] = []
        for event in runtime.engine.submit(Request(str(number), tuple(text.tokens), ANSWER)):
            tokens += getattr(event, "tokens", ())
        found.append(tokens)
        sys.stderr.write(f"\r{number + 1} of {len(cases)}")
    sys.stderr.write("\n")
    return found


def measured(
    path: Path,
    registry: Registry,
    device: str,
    policy: str,
    cases: Sequence[Text],
    full: Sequence[Sequence[int]],
) -> Row:
    paging = {"kvflash": BUDGET, "kvflash_burst": BURST, "kvflash_policy": policy}
    if policy == "drafter":
        paging["kvflash_drafter"] = path
    with opened(path, registry, device, **paging) as runtime:
        given = answers(runtime, cases)
        stats, limits = runtime.engine.stats(), runtime.loaded.limits
        nbytes = runtime.readers.nbytes
        if limits.scored is not None:
            nbytes += limits.digests * limits.scored.chunk_bytes
    right, total = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for text, one, other in zip(cases, given, full, strict=True):
        right[text.kind] += sum(a == b for a, b in zip(one, other, strict=False))
        total[text.kind] += len(other)
    spent = sum(stats[f"kvflash_{what}_us"] for what in ("scoring", "choosing", "moving"))
    selections = stats["kvflash_selections"]
    return Row(
        policy,
        nbytes,
        spent / selections if selections else 0.0,
        selections,
        stats["kvflash_recalls"],
        right,
        total,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=2, help="texts of every kind and depth")
    parser.add_argument("--depths", default=".1,.5,.9")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    path = registry.bundled_model()
    if path is None:
        raise SystemExit("no installed family ships a model")
    depths = [float(depth) for depth in options.depths.split(",")]
    with opened(path, registry, options.device) as runtime:
        vocabulary = runtime.info.vocabulary
        cases = list(texts(runtime.tokenizer, vocabulary, depths, options.each, options.seed))
        full = answers(runtime, cases)
    rows = []
    for policy in options.policies.split(","):
        rows.append(measured(path, registry, options.device, policy, cases, full))
        say(line(rows[-1]))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def line(row: Row) -> str:
    kinds = ", ".join(f"{kind} {row.right[kind]}/{row.total[kind]}" for kind in row.right)
    return (
        f"{row.policy:8} {sum(row.right.values()):4} of {sum(row.total.values())} tokens: {kinds}; "
        f"{row.device_bytes / 2**20:.2f} MiB, {row.choice_us:.0f} us a choice, "
        f"{row.recalled} chunks came back in {row.selections} choices\n"
    )


if __name__ == "__main__":
    main()
