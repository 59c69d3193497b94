"""``residency.py bench``: its options, the rows that it takes, and how they are shown."""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import Any

from expert_traces import KINDS, Trace, load_or_draw
from played_decoding import (
    Case,
    Experts,
    Opening,
    link_rate,
    machine,
    registry_with_traces,
    rows_of,
)
from row_file import RowFile

from kinfolk.cli.bench_runs import Workload
from kinfolk.settings import load_settings

BENCH_HELP = """Decode with a played trace in the real engine, and print what experts outside add.

Each line: what was opened, the case, the milliseconds of a step (or of a prompt), those of the same
with all experts on the device, the difference, the difference that the simulator predicts with the
measured rate of the link, the bar, whether it holds, the share of chosen experts that were near, MB
fetched and read in place or landed in a step, and whether the device counted what the simulator
counts.

Bars, B being the rate of the link: with bays that stay, far bytes / 0.80 B + 0.3 ms. One sequence
and a sticky trace: 2.55, 1.56 and 0.92 ms with 25, 50 and 75 % of a 35B-A3B in bays, with 50 % of
Laguna-XS.2 1.9 ms and of 26B-A4B 2.2. Several rows: missed bytes / 0.75 B, and a tenth more. A
prompt: cold bytes / 0.6 B. --memory 8 and 12: 3.2 and 2.2 ms. All others are only reported.

--all takes every row of the table of speeds: all experts near, then 50, 25 and 75 % with swaps and
without, 16 sequences, 16 drafted rows and a prompt of 2048 at 50 %, --memory 8 and 12."""


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
    parser.add_argument("--resume", action="store_true", help="keep the rows that --json has")
    parser.add_argument("--link", type=float, metavar="GB/s", help="default: measured")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--graphs", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser, run_bench


def run_bench(options: argparse.Namespace) -> None:
    plan = table_openings(options) if options.all else asked_openings(options)
    works = [case.work for opening in plan for case in opening.cases]
    if min(options.repeats, options.rows, *options.sequences) < 1 or options.generate < 2:
        raise ValueError("--repeats, --rows and --sequences are at least 1, --generate at least 2")
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
    found = Experts.of(options.model, load_settings(**common), registry)
    sizes = {"layers": found.layers, "experts": found.experts, "top_k": found.top_k}

    @cache
    def drawn(kind: str, sequences: int) -> Trace:
        tokens = 4096 if sequences == 1 else 512
        return load_or_draw(kind, tokens, sequences=sequences, seed=options.seed, **sizes)

    results = RowFile(options.json, options, machine(options.device))
    before = results.resume() if options.resume else []
    link = link_rate(options.device) if options.link is None else options.link * 1e9
    limits: dict[str, Any] = {"repeats": options.repeats, "seconds": options.seconds}
    asked = (options.model, plan, drawn, common, registry)
    for row in rows_of(*asked, **limits, link=link, before=before):
        results.add(row)
        sys.stdout.write(f"{bench_line(row)}\n")
        sys.stdout.flush()


def asked_openings(options: argparse.Namespace) -> list[Opening]:
    """All experts on the device first, to compare with, then what was asked for."""

    def case(trace: str, sequences: int) -> Case:
        work = Workload(options.prompt, options.generate, sequences, 0.0, rows=options.rows)
        rows = f", {options.rows} drafted rows" if options.rows > 1 else ""
        many = f"{sequences} sequences" if sequences > 1 else "one sequence"
        return Case(f"{Path(trace).name}, {many}{rows}", trace, work)

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
