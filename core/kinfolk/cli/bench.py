"""``kinfolk bench``: prefill and decode speed of a model, through the engine or over HTTP."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any, Final

import click

from kinfolk.cli.bench_http import percentiles
from kinfolk.cli.bench_runs import (
    Run,
    Workload,
    described,
    description_lines,
    measure,
    step_milliseconds,
)
from kinfolk.cli.console import ProgressBar, print_json, table
from kinfolk.cli.loading import (
    Requirements,
    check_model,
    discover,
    model_path,
    open_runtime,
    read_settings,
)
from kinfolk.cli.options import (
    ENGINE,
    LOADING,
    json_option,
    model_argument,
    sampling_value,
    settings_options,
)
from kinfolk.settings import flag, typed_options

if TYPE_CHECKING:
    from kinfolk.engine.runtime import Runtime


ENGINE_ONLY: Final = frozenset(
    {"prompt", "sequences", "temperature", "top_p", "rows", "widths", "plant"}
)
HTTP_ONLY: Final = frozenset({"url", "api_key", "streams", "prompts"})
ENGINE_ONLY_HINTS: Final = {"prompt": "; use --prompts", "sequences": "; use --streams"}

MOST_ROWS: Final = 64
"""Of a sequence in a step: a path has as many bits."""


class Numbers(click.ParamType[Any]):
    """Numbers of at least 1, and at most ``most``, separated by commas. ``kind`` reads one."""

    name = "numbers"

    def __init__(
        self, kind: type[int] | type[float] = int, like: str = "1,4,16", most: float = inf
    ) -> None:
        self._kind, self._like, self._most = kind, like, most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            numbers = tuple(self._kind(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        # NaN is in no range.
        if not numbers or not all(1 <= number <= self._most for number in numbers):
            limit = "" if self._most == inf else f" of numbers up to {self._most}"
            self.fail(f"{value!r} is not a list like {self._like}{limit}.", param, ctx)
        return numbers


@click.command(
    epilog="""\b
Examples:
  kinfolk bench -m model.gguf
  kinfolk bench -m model.gguf --prompt 2048 --generate 128 --repeats 5 --json
  kinfolk bench -m model.gguf --prompt 128 --sequences 16
  kinfolk bench -m model.gguf --prompt 32768 --temperature 0.8 --top-p 0.95
  kinfolk bench -m model.gguf --rows 16
\b
  kinfolk bench -m model.gguf --widths
  kinfolk bench -m model.gguf --widths 1,4,16 --draft-model model-draft.gguf
  kinfolk bench -m model.gguf --draft-model model-draft.gguf --plant 7.7,5.5,3,1.5
  kinfolk bench -m model.gguf --draft-model model-draft.gguf --plant 5.5 --draft-widths fixed
\b
  kinfolk bench -m model.gguf --http
  kinfolk bench -m model.gguf --http --streams 64 --prompts 128 --json
  kinfolk bench --http --url http://127.0.0.1:8080 --streams 1,16
\b
With --http, a row for each length and number of streams, times in milliseconds:
  tok/s          all tokens, from sending the requests to the end of the last answer
  decode tok/s   while every stream generated; beside "generate" without --http
  first p50 p95  from sending a request to its first text; beside "first token"
  gap            between two pieces of text of a stream
  errors         failed streams and the first reason; they are left out of the rest
\b
With --widths, a row for each number of rows, times in milliseconds:
  step           with rows that nobody proposed on the device
  ratio          of its time to that of a step of one row
  with draft     with rows that the drafter with weights proposed, and its next draft
  draft          the difference: the drafter's state, its draft and their launches
  break even     tokens that a step must emit on average to be as fast as one row
\b
With --plant, a row without drafts and one for each length:
  chance         of a token whose predecessors are accepted
  full depth     mean tokens of a step at full depth, by the parts accepted at each place
  accept length  mean tokens of a step that verified drafts, as wide as it was
  rows           of a sequence in a step, on average"""
)
@model_argument
@click.option(
    "--prompt",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Tokens of a prompt.",
)
@click.option(
    "--generate",
    type=click.IntRange(min=2),
    help="Tokens of an answer. Default: 128, with --http 256, with --plant 1024.",
)
@click.option(
    "--sequences",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Sequences that run at once.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Measured repeats.",
)
@sampling_value("temperature", default=0.0, show_default=True, help="0 = greedy.")
@sampling_value("top_p", default=1.0, show_default=True, help="1 = all tokens.")
@click.option(
    "--rows",
    type=click.IntRange(1, MOST_ROWS),
    default=1,
    show_default=True,
    help="Rows of a sequence in a step; all but one are random drafts.",
)
@click.option(
    "--widths",
    type=Numbers(most=MOST_ROWS),
    is_flag=False,
    flag_value="1,2,4,8,12,16,24,32,64",
    metavar="[ROWS,…]",
    help="The time of a step by its rows of a sequence, in one table, and what the drafter with "
    "weights adds. Without numbers: 1,2,4,8,12,16,24,32,64.",
)
@click.option(
    "--plant",
    type=Numbers(float, like="7.7,5.5,3"),
    metavar="TAU,…",
    help="Real passes of the drafter with weights, whose tokens are accepted by chance: TAU tokens "
    "a step on average at full depth. Output invalid.",
)
@click.option("--http", is_flag=True, help="Measure streams of a server instead of the engine.")
@click.option(
    "--url",
    help="With --http: a server that runs. Default: this command starts and stops its own.",
)
@click.option("--api-key", metavar="KEY", help="With --url: the key that the server requires.")
@click.option(
    "--streams",
    type=Numbers(),
    default="1,4,16,64",
    show_default=True,
    help="With --http: numbers of streams at once.",
)
@click.option(
    "--prompts",
    type=Numbers(),
    default="16,128,512,2000",
    show_default=True,
    help="With --http: lengths of the prompts, in tokens.",
)
@json_option
@settings_options(*LOADING, *ENGINE)
@click.pass_context
def bench(
    ctx: click.Context,
    /,
    model: str | None,
    prompt: int,
    generate: int | None,
    sequences: int,
    repeats: int,
    temperature: float,
    top_p: float,
    rows: int,
    widths: tuple[int, ...] | None,
    plant: tuple[float, ...] | None,
    http: bool,
    as_json: bool,
    **rest: Any,
) -> None:
    """Measure the model in FILE, or the bundled one: the median speed of several repeats.

    Every sequence of every repeat has its own random prompt, so no prefix is reused; end-of-text
    tokens do not end an answer. The prompt's time ends when the first token is on the host. A
    warm-up repeat is not counted. --expert-profile is read and never written.

    With --http, clients stream from 'kinfolk serve' in a process of its own, so that what HTTP adds
    can be read: measure the same lengths with and without it.
    """
    _check_mode(ctx, model, http)
    if http:
        _bench_http(ctx, model, generate or 256, repeats, as_json, rest)
        return
    generate = generate or (128 if plant is None else 1024)
    work = Workload(prompt, generate, sequences, temperature, top_p, rows)
    if widths is not None or plant is not None:
        from kinfolk.cli import bench_drafts

        lists = bench_drafts.Lists(widths or (), plant or ())
        bench_drafts.run(ctx, model, work, lists, repeats, as_json=as_json)
        return
    drafts: dict[str, Any] = {"draft": "off"}
    if rows > 1:
        drafts = {"draft": "random", "draft_tokens": rows - 1, "draft_widths": "fixed"}
    needed = prompt + work.max_new
    settings = read_settings(ctx, slots=sequences, checkpoints=0, context=needed, **drafts)
    need = Requirements(positions=needed, what=f"--prompt {prompt} with --generate {generate}")
    with open_runtime(settings, model, need, keep_profile=False) as runtime:
        runs = []
        with ProgressBar("measuring") as progress:
            for repeat in range(repeats + 1):
                runs.append(measure(runtime, work, seed=repeat))
                progress(repeat + 1, repeats + 1, "")
        report = _report(runtime, work, runs[1:])
    if as_json:
        print_json(report)
    else:
        click.echo(_as_text(report))


def _check_mode(ctx: click.Context, model: str | None, http: bool) -> None:
    """Refuse options of the other way of measuring."""
    typed = {
        name
        for name in ctx.params
        if (source := ctx.get_parameter_source(name)) and source.name == "COMMANDLINE"
    }
    wrong = sorted(typed & (ENGINE_ONLY if http else HTTP_ONLY))
    if wrong:
        name = flag(wrong[0])
        hint = ENGINE_ONLY_HINTS.get(wrong[0], "") if http else ""
        raise click.UsageError(f"{name} {'does not go' if http else 'goes only'} with --http{hint}")
    settings = sorted(typed & {*LOADING, *ENGINE})
    if "url" in typed and (settings or model is not None):
        what = flag(settings[0]) if settings else "a model"
        raise click.UsageError(f"--url names a server that has its model already; leave {what} out")
    several = [flag(name) for name in ("rows", "widths", "plant") if name in typed]
    if len(several) > 1:
        raise click.UsageError(f"{several[0]} does not go with {several[1]}")
    if "api_key" in typed and "url" not in typed:
        raise click.UsageError("--api-key goes only with --url")


def _bench_http(
    ctx: click.Context,
    model: str | None,
    generate: int,
    repeats: int,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    from kinfolk.cli import bench_http
    from kinfolk.cli.http_streams import Address

    counts, prompts, url = options["streams"], options["prompts"], options["url"]
    cases = [bench_http.Streams(count, prompt, generate) for prompt in prompts for count in counts]
    if url is not None:
        address = Address.parse(url, options["api_key"])
        rows = bench_http.measure_streams(address, cases, repeats)
    else:
        needed = max(prompts) + generate
        defaults = {"slots": max(counts), "checkpoints": 0, "context": needed, "draft": "off"}
        settings = read_settings(ctx, **defaults)
        registry = discover(settings)
        path = model_path(model, registry)
        what = f"--prompts {max(prompts)} with --generate {generate}"
        check_model(path, settings, registry, Requirements(positions=needed, what=what))
        arguments = ["-m", str(path), *bench_http.flags_of(settings, typed_options(ctx))]
        with (
            bench_http.profile_copy(settings.expert_profile) as profile,
            bench_http.server_process([*arguments, *profile]) as address,
        ):
            rows = bench_http.measure_streams(address, cases, repeats)
    report = bench_http.full_report(address, model, rows)
    if as_json:
        print_json(report)
    else:
        click.echo(bench_http.as_text(report))
    if any(row["errors"] for row in rows):
        ctx.exit(1)


def _report(runtime: Runtime, work: Workload, runs: list[Run]) -> dict[str, Any]:
    prompts = [work.sequences * work.prompt / run.prompt for run in runs]
    decodes = [run.tokens / run.decode for run in runs]
    return {
        **described(runtime, work, len(runs)),
        "prompt_tokens_per_second": round(statistics.median(prompts), 2),
        "generate_tokens_per_second": round(statistics.median(decodes), 2),
        "first_token_seconds": round(statistics.median(run.prompt for run in runs), 4),
        "first_token_milliseconds": percentiles(
            [seconds for run in runs for seconds in run.firsts], 50, 95
        ),
        "step_milliseconds": step_milliseconds(runs),
        "runs": [asdict(run) for run in runs],
        "expert_use": runtime.engine.expert_use(),
        "engine": runtime.engine.stats(),
        "uncapturable_ops": runtime.engine.uncapturable_ops(),
    }


def _as_text(report: dict[str, Any]) -> str:
    work = report["workload"]
    rows = [
        *description_lines(report),
        ("prompt", f"{report['prompt_tokens_per_second']} tok/s"),
        ("generate", f"{report['generate_tokens_per_second']} tok/s"),
        (
            "first token",
            "{p50:.4g} ms, p95 {p95:.4g} ms".format(**report["first_token_milliseconds"]),
        ),
        ("step", f"{report['step_milliseconds']} ms, {work['rows']} rows per sequence"),
        ("steps", _engine_counters(report["engine"])),
        *_expert_counters(report["engine"]),
        *((f"no graph: {name}", why) for name, why in report["uncapturable_ops"].items()),
    ]
    return table(rows)


def _expert_counters(stats: dict[str, int]) -> list[tuple[str, str]]:
    """How many of the experts that the layers of steps chose were on the device."""
    if "expert_bays" not in stats:
        return []
    if "expert_hits" not in stats:
        return [("experts", "not counted (--expert-swap off without --expert-profile)")]
    near, fetched, far = (stats[f"expert_{kind}"] for kind in ("hits", "fetched", "far"))
    share = near / max(1, near + fetched + far)
    return [("experts", f"{share:.1%} near, {fetched} fetched, {far} read from host memory")]


def _engine_counters(stats: dict[str, int]) -> str:
    names = ("steps", "replays", "eager_steps", "captures", "uploads", "waits", "allocations")
    return ", ".join(f"{stats[name]} {name.replace('_', ' ')}" for name in names)
