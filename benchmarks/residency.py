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
           fetch takes 0.92 of the rate of a large copy, reading in place 0.85, and a fetch of
           nothing 0.3 us a layer, or 1.9 with several rows. 'bench' also has prompts: what they
           land takes 0.90

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
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
from expert_traces import KINDS, Trace, load_or_draw
from row_file import RowFile

from kinfolk.cli.console import table
from kinfolk.errors import KinfolkError

HERE = Path(__file__).resolve().parent
GIB = 2**30

POLICIES = ("count", "lru", "static", "swaps")


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    form = given.pop(0) if given[:1] in (["record"], ["bench"]) else ""
    if form == "bench":
        from residency_bench import bench_form as make
    else:
        make = record_form if form else simulate_form
    parser, run = make()
    options = parser.parse_args(given)
    try:
        run(options)
    except (ValueError, OSError, KinfolkError) as error:
        parser.error(str(error))


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
    if min((*options.share, *options.budget, options.warm)) < 0 or options.link <= 0:
        raise ValueError("shares, budgets and --warm are at least 0, --link is above 0")
    counts = (*options.sequences, options.tokens, options.layers, options.record_bytes, options.lag)
    if min(counts) < 1:
        raise ValueError("--sequences, --tokens, --layers, --record-bytes and --lag are at least 1")
    if not all(0 <= decay <= 1 for decay in options.decay):
        raise ValueError("--decay is from 0 to 1")
    results = RowFile(options.json, options)
    for name in options.trace:
        for sequences in options.sequences:
            sizes = {"layers": options.layers, "experts": options.experts, "top_k": options.top_k}
            tokens = options.warm + options.tokens
            trace = load_or_draw(name, tokens, sequences=sequences, seed=options.seed, **sizes)
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
    many = f"{trace.sequences} sequences" if trace.sequences > 1 else "one sequence"
    return (
        f"{trace.name}: {trace.tokens} tokens of {many}, {trace.top_k} of "
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
    from played_decoding import registry_with_traces
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
        recorder.experts(runtime.name)  # before the time is spent
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


if __name__ == "__main__":
    main()
