"""What answers are worth with each ``--kvflash-policy``: the bundled model, in the engine.

    python benchmarks/policies.py [--each N] [--depths .1,.5,.9] [--policies lru,qk,drafter,oracle]
                                  [--exact text|whole] [--device cpu] [--seed N] [--json FILE]

Texts are those of ``benchmarks/recall.py``: 63 chunks with a needle, to which their end goes back.
Each is answered with everything on the device first, and then with a budget, of which two chunks
can be chosen. The answer is what follows in the needle, and the engine is made to give it: a token
is right if it is the most probable one behind the right ones before it. With ``--exact`` there is
one more row of each policy: 63 chunks were read with everything on the device and stored on the
disk, and are gone on from with the budget. With ``whole`` the end is stored too, but for its last
token, which is never in a stored prefix: then chunks are chosen by that one row.

With ``drafter`` the model reads itself along. Bytes are those of the device for scores, and
for another model with its state; microseconds are the host's for a choice, which with ``oracle`` is
all of it, and with ``drafter`` not the reading. ``benchmarks/kernels/chunks.py`` has those of a
device.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Final

from forced import Forced
from recall import CHOSEN, CHUNKS, KINDS, SINK, TAIL, Text, texts

from kinfolk import hookimpl
from kinfolk.cli.main import BUILT_IN
from kinfolk.descriptors import PolicySpec
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.runtime import Runtime
from kinfolk.engine.text import open_text
from kinfolk.errors import SettingsError
from kinfolk.loader import Provided
from kinfolk.model_api import ModelInfo
from kinfolk.plans import PoolRule, SlotMapping, StateLimits, StatePlan
from kinfolk.registry import Registry
from kinfolk.sched.events import Finished, Usage
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.types import CHUNK_POSITIONS

say = sys.stdout.write

POLICIES = ("lru", "qk", "drafter", "oracle")
RESIDENT = "resident"
"""The row with everything on the device."""

BURST = 2
DECODING = SINK + TAIL + CHOSEN
"""Chunks on the device while an answer is given."""

BUDGET = (DECODING + BURST + 1) * CHUNK_POSITIONS
"""Spare ones as well, and one for a step."""

CACHE: Final = {"checkpoints": 2, "cache_memory": 0.25, "cache_disk": 16.0}
"""Settings with which prompts are stored."""


class Study(Forced):
    """Answers are given, and the last chunks that stay are as many as ``recall.py`` has."""

    @hookimpl
    def map_slots(self, plan: StatePlan, residency: StateLimits) -> SlotMapping:
        return SlotMapping(tuple(PoolRule(window, SINK, TAIL) for window in plan.windows))


def create(info: ModelInfo) -> Study:
    return Study()


STUDY: Final = PolicySpec("recall", f"{__name__}:create")


@dataclass(frozen=True)
class Row:
    """``right`` of ``total`` tokens, by kind of text. ``exact``: prompts were read with everything
    on the device."""

    policy: str
    exact: bool
    device_bytes: int
    choice_us: float
    selections: int
    recalled: int
    right: dict[str, int]
    total: dict[str, int]


def measured(
    path: Path,
    registry: Registry,
    device: str,
    cases: Sequence[Text],
    policy: str = RESIDENT,
    stored: Path | None = None,
    *,
    whole: bool = False,
) -> Row:
    """The row of a policy. ``stored`` is a folder: with everything on the device, prompts are
    stored there, and a policy goes on from them; ``whole``: with their ends."""
    resident = policy == RESIDENT
    settings: dict[str, Any] = {"checkpoints": 0}
    if stored is not None:
        settings = {**CACHE, "cache_dir": stored}
    if not resident:
        settings |= {"kvflash": BUDGET, "kvflash_burst": BURST, "kvflash_policy": policy}
    if policy == "drafter":
        settings["kvflash_drafter"] = path
    right, total = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    with opened(path, registry, device, **settings) as runtime:
        for number, text in enumerate(cases):
            length = len(text.tokens) - 1 if whole else CHUNKS * CHUNK_POSITIONS
            checkpoints = (length,) if resident and stored is not None else ()
            usage, chosen = answered(runtime, text, str(number), checkpoints)
            if usage.exact != resident:
                raise SettingsError(f"{policy}: what left the device is not what the row is about")
            if checkpoints:
                store(runtime, text.tokens[:length], str(number))
            elif usage.reused != (0 if stored is None else length):
                raise SettingsError(f"{usage.reused} tokens of {length} were on the disk")
            right[text.kind] += sum(a == b for a, b in zip(chosen, text.answer, strict=True))
            total[text.kind] += len(text.answer)
            sys.stderr.write(f"\r{number + 1} of {len(cases)}")
        sys.stderr.write("\n")
        stats, limits = runtime.engine.stats(), runtime.loaded.limits
        nbytes = runtime.readers.nbytes
        if limits.scored is not None:
            nbytes += limits.digests * limits.scored.chunk_bytes
    spent = sum(stats[f"kvflash_{what}_us"] for what in ("scoring", "choosing", "moving"))
    selections = stats["kvflash_selections"]
    return Row(
        policy,
        resident or stored is not None,
        nbytes,
        spent / selections if selections else 0.0,
        selections,
        stats["kvflash_recalls"],
        right,
        total,
    )


def opened(path: Path, registry: Registry, device: str, **more: Any) -> Runtime:
    study = Provided(STUDY, "benchmark", "benchmarks/policies.py")
    registry = replace(registry, policies={**registry.policies, STUDY.name: study})
    settings = load_settings(
        device=device,
        slots=1,
        context=(CHUNKS + 1) * CHUNK_POSITIONS,
        draft="off",
        policy=STUDY.name,
        **({"dtype": "f32"} if device == "cpu" else {}),
        **more,
    )
    return Runtime.open(path, settings, registry)


def answered(
    runtime: Runtime, text: Text, name: str, checkpoints: tuple[int, ...]
) -> tuple[Usage, list[int]]:
    """What the model chose in each place of the answer."""
    providers = runtime.loaded.hooks.providers
    (forced,) = (each.hooks for each in providers if isinstance(each.hooks, Forced))
    forced.text([*text.tokens, *text.answer], runtime.loaded.device)
    request = Request(name, tuple(text.tokens), len(text.answer), checkpoints=checkpoints)
    *_, end = runtime.engine.submit(request)
    assert isinstance(end, Finished)
    if end.error is not None:
        raise SettingsError(end.error)
    return end.usage, forced.chosen()[len(text.tokens) :]


def store(runtime: Runtime, tokens: Sequence[int], name: str) -> None:
    """Wait until a prompt that has been read is on the disk."""
    named, heard = runtime.engine.named_prefixes(), SimpleQueue[str]()
    assert named is not None
    named.put(tuple(tokens), name, heard.put)
    if fault := heard.get():
        raise SettingsError(f"a prompt is not on the disk: {fault}")


def cases_of(
    path: Path,
    registry: Registry,
    depths: Sequence[float],
    each: int,
    seed: int = 0,
    most: int | None = None,
) -> list[Text]:
    """:func:`recall.texts` for the model of a file."""
    tokenizer, _, _ = open_text(path, load_settings(), registry)
    return list(texts(tokenizer, tokenizer.vocab_size, depths, each, seed, most))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=2, help="texts of every kind and depth")
    parser.add_argument("--depths", default=".1,.5,.9")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--exact", choices=("text", "whole"), help="go on from stored prompts too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    path = bundled_model(registry)
    depths = [float(depth) for depth in options.depths.split(",")]
    cases = cases_of(path, registry, depths, options.each, options.seed)
    rows = []
    with TemporaryDirectory() as folder:
        stored = Path(folder) if options.exact else None
        for policy in (RESIDENT, *options.policies.split(",")):
            for place in (stored,) if stored is None or policy == RESIDENT else (stored, None):
                whole = options.exact == "whole"
                rows.append(
                    measured(path, registry, options.device, cases, policy, place, whole=whole)
                )
                say(line(rows[-1]))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def line(row: Row) -> str:
    kinds = ", ".join(f"{kind} {row.right[kind]}/{row.total[kind]}" for kind in row.right)
    prompt = "exact" if row.exact else "pooled"
    return (
        f"{row.policy:8} {prompt:6} {sum(row.right.values()):4} of {sum(row.total.values())} "
        f"tokens: {kinds}; {row.device_bytes / 2**20:.2f} MiB, {row.choice_us:.0f} us a choice, "
        f"{row.recalled} chunks came back in {row.selections} choices\n"
    )


if __name__ == "__main__":
    main()
