"""Experts that do not fit: what a trace of their choices costs, simulated and in the real engine.

    python benchmarks/residency.py [--trace KIND|FILE]... [options]
    python benchmarks/residency.py record -m MODEL.gguf --out TRACE.npz [options]
    python benchmarks/residency.py bench -m MODEL.gguf [--trace KIND|FILE]... [options]

The first form needs no GPU and no model. Each line of its table has a trace, the share of the
experts that have bays, a policy, and

hits       of the experts that the layers of a step choose, those that are in a bay
missed     those that are not, for each token
MB         bytes that cross the link, for each token: records fetched, swapped, or read in place
added ms   what a step takes longer than with all experts on the device, by --link. Predicted: a
           fetch takes 0.91 of the rate of a large copy, reading in place 0.75, and a fetch of
           nothing 3 us a layer

Policies:

count      what kinfolk does: a score is multiplied by --decay in each step and raised by 1 where
           the step chose the expert; what is missed takes the bay of the least score
lru        the expert leaves whose last use is the longest ago
static     bays stay; those of the experts that were used most in the tokens of --warm
swaps      the host sees the choices of a step --lag steps later and swaps by their count; what is
           missed until then is read in place

To simulate a text of your own, record a model that reads and continues it, and give the file:

    python benchmarks/residency.py record -m model.gguf --texts notes.txt --out notes.npz
    python benchmarks/residency.py --trace notes.npz --share 25 50 75 --decay 0.9 0.95 0.99

'record' runs step by step with all experts wherever they fit; layers, experts and choices of the
simulation are then those of the file, and --record-bytes are those of an expert of your model
(their tensors in the file, divided by the experts). 'bench' plays a trace in a full-size model,
whose weights may be random:

    kinfolk synth qwen3.5-35b-a3b model.gguf
    python benchmarks/residency.py bench -m model.gguf --trace sticky --expert-budget 50%
    python benchmarks/residency.py bench -m model.gguf --all --json rows.json

It prints what experts outside add to a step of decoding, beside what was predicted and the bar that
was set for it; see 'bench --help'. With --json, rows are written as each of them ends.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from expert_residency import (
    DECAY,
    DecayedCount,
    HostSwaps,
    LeastRecentlyUsed,
    Policy,
    Residency,
    Static,
    placement_for,
    predicted_seconds,
    simulate,
)
from expert_traces import KINDS, Trace, draw, load

from kinfolk.cli.console import table

if TYPE_CHECKING:
    from residency_bench import Opening

HERE = Path(__file__).resolve().parent
GIB = 2**30

POLICIES = ("count", "lru", "static", "swaps")

BENCH_HELP = """Decode with a played trace in the real engine, and print what experts outside add.

Each line: what was opened, the case, the milliseconds of a step (or of a prompt), those of the same
with all experts on the device, the difference, the difference that the simulator predicts with the
measured rate of the link, the bar, whether it holds, the share of chosen experts that were near, MB
fetched and read in place in a step, and whether the device counted what the simulator counts.

Bars, B being the rate of the link: with bays that stay, far bytes / 0.80 B + 0.3 ms. One sequence
and a sticky trace: 2.55, 1.56 and 0.92 ms with 25, 50 and 75 % of a 35B-A3B in bays, with 50 % of
Laguna-XS.2 1.9 ms and of 26B-A4B 2.2. Several rows: missed bytes / 0.75 B, and a tenth more. A
prompt: cold bytes / 0.6 B. --memory 8 and 12: 3.2 and 2.2 ms. All others are only reported.

--all takes every row of the table of speeds: all experts near, then 50, 25 and 75 % with swaps and
without, 16 sequences, 16 drafted rows and a prompt of 2048 at 50 %, --memory 8 and 12."""


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    forms = {"record": record_form, "bench": bench_form}
    make = forms.get(given[0] if given else "", simulate_form)
    parser, run = make()
    options = parser.parse_args(given[1:] if make is not simulate_form else given)
    try:
        run(options)
    except ValueError as error:
        parser.error(str(error))


@dataclass
class Results:
    """Rows of a result, which are in the file of ``--json`` as soon as each of them is there."""

    path: Path | None
    options: argparse.Namespace
    machine: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.path is not None:
            told = {name: str(value) for name, value in vars(self.options).items()}
            taken = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            content = {"options": told, "taken": taken, **self.machine, "rows": self.rows}
            self.path.write_text(json.dumps(content, indent=1) + "\n")


def traced(name: str, tokens: int, sequences: int, sizes: dict[str, int], seed: int) -> Trace:
    """The trace of a kind, or of a file, for so many sequences."""
    if name in KINDS:
        return draw(name, tokens, sequences=sequences, seed=seed, **sizes)
    return load(Path(name)).split(sequences)


# -- simulating -----------------------------------------------------------------------------------


def simulate_form() -> tuple[argparse.ArgumentParser, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", nargs="+", metavar="KIND|FILE", default=list(KINDS[:3]),
                        help=f"{', '.join(KINDS)}, or a recorded file")  # fmt: skip
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--decay", nargs="+", type=float, default=[DECAY],
                        help=f"of count; default: that of kinfolk, {DECAY}")  # fmt: skip
    parser.add_argument("--share", nargs="+", type=float, default=[], metavar="PERCENT",
                        help="experts that have bays; default: 25 50 75")  # fmt: skip
    parser.add_argument("--budget", nargs="+", type=float, default=[], metavar="GIB")
    parser.add_argument("--sequences", nargs="+", type=int, default=[1], help="side by side")
    parser.add_argument("--tokens", type=int, default=1024, help="of a sequence, counted")
    parser.add_argument("--warm", type=int, default=256, help="tokens before those")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--record-bytes", type=float, default=1.95e6, help="of an expert")
    parser.add_argument("--link", type=float, default=55.0, metavar="GB/s",
                        help="rate of a large copy from host memory")  # fmt: skip
    parser.add_argument("--lag", type=int, default=4, help="of swaps, in steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser, run_simulation


def run_simulation(options: argparse.Namespace) -> None:
    if not options.share and not options.budget:
        options.share = [25.0, 50.0, 75.0]
    if min((*options.share, *options.budget)) < 0 or options.lag < 1 or options.link <= 0:
        raise ValueError("shares and budgets are at least 0, --lag is at least 1, --link above 0")
    results = Results(options.json, options)
    for name in options.trace:
        for sequences in options.sequences:
            sizes = {"layers": options.layers, "experts": options.experts, "top_k": options.top_k}
            tokens = options.warm + options.tokens
            trace = traced(name, tokens, sequences, sizes, options.seed)
            if trace.tokens <= options.warm:
                raise ValueError(f"trace {name} has {trace.tokens} tokens of a sequence, all of "
                                 f"which --warm {options.warm} takes")  # fmt: skip
            sys.stdout.write(f"{described(trace)}\n")
            rows = list(simulated(trace, options))
            for row in rows:
                results.add(row)
            sys.stdout.write(f"{as_text(rows)}\n\n")
            sys.stdout.flush()


def described(trace: Trace) -> str:
    return (
        f"{trace.name}: {trace.tokens} tokens of {trace.sequences} sequences, {trace.top_k} of "
        f"{trace.experts} experts in {trace.layers} layers; {trace.reuse(1):.1%} of the choices "
        f"were the last token's, {trace.reuse(8):.1%} among the last eight; the busiest quarter "
        f"of the experts has {trace.busiest(0.25):.0%}"
    )


def simulated(trace: Trace, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    record = np.full(trace.layers, int(options.record_bytes))
    total = int(record.sum()) * trace.experts
    budgets = {f"{share:g} %": int(total * share / 100) for share in options.share}
    budgets |= {f"{gib:g} GiB": int(gib * GIB) for gib in options.budget}
    profile = Trace(trace.name, trace.experts, trace.ids[: options.warm or None]).counts()
    link = options.link * 1e9
    for label, budget in budgets.items():
        for name, policy in policies(options):
            counts = profile if isinstance(policy, Static) else None
            placement = placement_for(budget, record, trace.experts, counts)
            residency = Residency.of(placement, trace.experts)
            traffic = simulate(trace, policy, residency, warm=options.warm)
            hits, fetched, far = traffic.totals
            seconds = predicted_seconds(traffic, record, link, fetches=policy.fetches)
            yield {
                "trace": trace.name,
                "sequences": trace.sequences,
                "bays": label,
                "policy": name,
                "tokens": traffic.rows,
                "hits": hits,
                "fetched": fetched,
                "far": far,
                "swapped": int(traffic.swapped.sum()),
                "hit_share": round(traffic.hit_share, 4),
                "missed_a_token": round((fetched + far) / traffic.rows, 2),
                "MB_a_token": round(sum(traffic.missed_bytes(record)) / traffic.rows / 1e6, 2),
                "added_ms_a_step": round(1e3 * seconds / traffic.steps, 3),
            }


def policies(options: argparse.Namespace) -> Iterator[tuple[str, Policy]]:
    for name in options.policy:
        if name == "count":
            for decay in options.decay:
                yield f"count {decay:g}", DecayedCount(decay)
        elif name == "lru":
            yield name, LeastRecentlyUsed()
        elif name == "static":
            yield name, Static()
        else:
            yield f"swaps +{options.lag}", HostSwaps(options.lag, DecayedCount(DECAY))


def as_text(rows: Sequence[dict[str, Any]]) -> str:
    head = ("bays", "policy", "hits", "missed a token", "MB a token", "added ms a step")
    cells = [
        [
            row["bays"],
            row["policy"],
            f"{row['hit_share']:.1%}",
            f"{row['missed_a_token']:.1f}",
            f"{row['MB_a_token']:.1f}",
            f"{row['added_ms_a_step']:.2f}",
        ]
        for row in rows
    ]
    return table([head, *cells])


# -- recording ------------------------------------------------------------------------------------


def record_form() -> tuple[argparse.ArgumentParser, Any]:
    parser = argparse.ArgumentParser(
        prog="residency.py record",
        description="Record which experts a model chooses while it reads and continues texts.",
    )
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", nargs="+", type=Path, help="default: pages of docs/")
    parser.add_argument("--prompt", type=int, default=256, help="most tokens of a text")
    parser.add_argument("--tokens", type=int, default=256, help="of its continuation, greedy")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    return parser, run_recording


def run_recording(options: argparse.Namespace) -> None:
    from residency_bench import registry_with_traces
    from traced_routes import recording

    from kinfolk.engine.runtime import Runtime
    from kinfolk.sched.request import Request
    from kinfolk.settings import load_settings

    paths = options.texts or sorted((HERE.parent / "docs").glob("*.md"))[:8]
    try:
        texts = [path.read_text() for path in paths]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"a text cannot be read: {error}") from error
    settings = load_settings(
        device=options.device,
        dtype=options.dtype,
        context=options.prompt + options.tokens,
        slots=1,
        checkpoints=0,
        draft="off",
        graphs="off",
        op="route=recorded",
    )
    with recording() as recorder, Runtime.open(
        options.model, settings, registry_with_traces()
    ) as runtime:  # fmt: skip
        for number, text in enumerate(texts):
            tokens = runtime.tokenizer.encode(text, parse_special=False)[: options.prompt]
            if not tokens:
                continue
            # No token ends it early, as none is named.
            *_, end = runtime.engine.submit(Request(f"{number}", tuple(tokens), options.tokens))
            if getattr(end, "error", None) is not None:
                raise ValueError(f"{paths[number]}: {end.error}")
        trace = recorder.trace(runtime.name)
    trace.save(options.out)
    sys.stdout.write(f"{described(trace)}\n{options.out}\n")


# -- the real engine ------------------------------------------------------------------------------


def bench_form() -> tuple[argparse.ArgumentParser, Any]:
    parser = argparse.ArgumentParser(
        prog="residency.py bench",
        description=BENCH_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--trace", nargs="+", metavar="KIND|FILE", default=["sticky"],
                        help=f"{', '.join(KINDS)}, or a recorded file")  # fmt: skip
    parser.add_argument("--expert-budget", nargs="+", default=["50%"], metavar="N%|GIB")
    parser.add_argument("--swap", nargs="+", choices=("on", "off"), default=["on", "off"])
    parser.add_argument("--memory", nargs="+", type=float, default=[], metavar="GIB",
                        help="also with what so much device memory leaves")  # fmt: skip
    parser.add_argument("--sequences", nargs="+", type=int, default=[1])
    parser.add_argument("--rows", type=int, default=1, help="of a sequence; all but one drafted")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="every row of the table of speeds")
    parser.add_argument("--seconds", type=float, default=1500.0,
                        help="open nothing more behind so many; default: 1500")  # fmt: skip
    parser.add_argument("--link", type=float, metavar="GB/s", help="default: measured")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--graphs", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser, run_bench


def run_bench(options: argparse.Namespace) -> None:
    from residency_bench import Experts, machine, registry_with_traces, rows_of

    from kinfolk.errors import KinfolkError
    from kinfolk.settings import load_settings

    plan = table_openings(options) if options.all else asked_openings(options)
    works = [case.work for opening in plan for case in opening.cases]
    if any(work.prompt <= work.sequences * work.rows for work in works):
        raise ValueError("--prompt must be more than --sequences times --rows, so that steps of "
                         "prompts can be told from those that decode")  # fmt: skip
    common: dict[str, Any] = {
        "device": options.device,
        "dtype": options.dtype,
        "graphs": options.graphs,
        "checkpoints": 0,
        "draft": "off",
        "slots": max(work.sequences for work in works),
        "context": max(work.prompt + work.max_new for work in works),
    }
    registry = registry_with_traces()
    try:
        found = Experts.of(options.model, load_settings(**common), registry)
    except KinfolkError as error:
        raise ValueError(str(error)) from error
    sizes = {"layers": found.layers, "experts": found.experts, "top_k": found.top_k}

    @cache
    def drawn(kind: str, sequences: int) -> Trace:
        return traced(kind, 4096 if sequences == 1 else 512, sequences, sizes, options.seed)

    results = Results(options.json, options, machine(options.device))
    link = None if options.link is None else options.link * 1e9
    for row in rows_of(options.model, plan, drawn, common, registry,
                       repeats=options.repeats, seconds=options.seconds, link=link):  # fmt: skip
        results.add(row)
        sys.stdout.write(f"{bench_line(row)}\n")
        sys.stdout.flush()


def asked_openings(options: argparse.Namespace) -> list[Opening]:
    """All experts on the device first, to compare with, then what was asked for."""
    from residency_bench import Case, Opening

    from kinfolk.cli.bench_runs import Workload

    def case(trace: str, sequences: int) -> Case:
        work = Workload(options.prompt, options.generate, sequences, 0.0, rows=options.rows)
        rows = f", {options.rows} drafted rows" if options.rows > 1 else ""
        return Case(f"{Path(trace).name}, {sequences} sequences{rows}", trace, work)

    cases = tuple(case(trace, each) for each in options.sequences for trace in options.trace)
    alone = tuple(each for each in cases if each.work.sequences == 1)
    budgets = [(budget, swap) for budget in options.expert_budget for swap in options.swap]
    return [
        Opening("all", "on", cases),
        *(Opening(budget, swap, cases) for budget, swap in budgets),
        *(Opening("", swap, alone, memory) for memory in options.memory for swap in options.swap),
    ]


def table_openings(options: argparse.Namespace) -> list[Opening]:
    """The rows of the table of speeds, those first that matter most."""
    from residency_bench import Case, Opening

    from kinfolk.cli.bench_runs import Workload

    def work(prompt: int = options.prompt, sequences: int = 1, rows: int = 1) -> Workload:
        return Workload(prompt, options.generate, sequences, 0.0, rows=rows)

    sticky = Case("sticky", "sticky", work())
    uniform = Case("uniform", "uniform", work())
    wide = (
        Case("16 sequences", "sticky", work(sequences=16)),
        Case("16 drafted rows", "sticky", work(rows=16)),
        Case("prompt of 2048", "sticky", work(prompt=2048), prompts=True),
    )
    return [
        Opening("all", "on", (sticky, uniform, *wide)),
        Opening("50%", "on", (sticky, uniform, *wide)),
        Opening("25%", "on", (sticky, uniform)),
        Opening("75%", "on", (sticky, uniform)),
        *(Opening(budget, "off", (sticky,)) for budget in ("50%", "25%", "75%")),
        *(Opening("", "on", (sticky,), memory) for memory in (8.0, 12.0)),
    ]


def bench_line(row: dict[str, Any]) -> str:
    what = f"{row['opening']:22} {row['case']:24}"
    if reason := row.get("failed") or row.get("skipped"):
        return f"{what} {reason}"
    said = f"{what} {row['ms']:8.3f} ms"
    if "bays" not in row:
        return f"{said}, all experts near"
    added = "?" if row["added_ms"] is None else f"{row['added_ms']:.3f}"
    bar = "no bar" if row["bar_ms"] is None else f"bar {row['bar_ms']:.3f}"
    held = {None: "", True: ", holds", False: ", MISSED"}[row["held"]]
    equal = {True: "as simulated", False: f"simulated {row['simulated']}"}
    device = row["device"]
    counted = "" if device is None else (
        f"; device {device}: {equal[device == row['simulated']]}"
    )  # fmt: skip
    peak = f"; peak {row['peak_GiB']:.2f} GiB" if "peak_GiB" in row else ""
    return (
        f"{said}, added {added} (predicted {row['predicted_ms']:.3f}, {bar}{held}); "
        f"{row['hit_share']:.1%} near, {row['copied_MB']:.1f} MB fetched, {row['far_MB']:.1f} MB "
        f"read far, link {row['link_GB_s']:.1f} GB/s{counted}{peak}"
    )


if __name__ == "__main__":
    main()
