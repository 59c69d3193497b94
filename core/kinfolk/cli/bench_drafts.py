"""``kinfolk bench --widths`` and ``--plant``: what rows and drafts cost, and what they give."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from kinfolk.cli.bench_runs import (
    Run,
    Workload,
    described,
    description_lines,
    measure,
    step_milliseconds,
)
from kinfolk.cli.console import ProgressBar, print_json, table
from kinfolk.cli.loading import Requirements, open_runtime, read_settings
from kinfolk.draft_api import MAX_PROPOSED
from kinfolk.errors import SettingsError
from kinfolk.sched.draft_counts import DraftCounts
from kinfolk.settings import Settings

if TYPE_CHECKING:
    from kinfolk.draft_api import Drafter
    from kinfolk.engine.drafting import LoadedDrafter
    from kinfolk.engine.loading import LoadedModel
    from kinfolk.engine.runtime import Runtime
    from kinfolk.sched.events import Usage
    from kinfolk.sched.limits import SchedulerLimits
    from kinfolk.spec.plant import PlantedAcceptance


@dataclass(frozen=True, slots=True)
class Lists:
    """The list of ``--widths``, rows of a sequence, or that of ``--plant``, tokens of a step."""

    widths: tuple[int, ...]
    plant: tuple[float, ...]


def run(
    ctx: click.Context,
    model: str | None,
    work: Workload,
    lists: Lists,
    repeats: int,
    *,
    as_json: bool,
) -> None:
    """Measure one of the lists on the model and print the table."""
    # One row is what all others are compared with.
    widths = sorted({1, *lists.widths}) if lists.widths else []
    spare = max(widths) - 1 if widths else MAX_PROPOSED
    needed = work.prompt + work.generate + spare
    settings = read_settings(
        ctx,
        slots=work.sequences,
        checkpoints=0,
        context=needed,
        # Unless the user says otherwise, a drafter proposes all that it can.
        draft_tokens=max(1, spare),
    )
    if settings.batch_invariant:
        raise SettingsError(
            f"{'--widths' if widths else '--plant'}: nothing can be drafted with "
            "--batch-invariant; leave out one of them"
        )
    what = f"--prompt {work.prompt} with --generate {work.generate} and {spare} drafted rows"
    need = Requirements(positions=needed, what=what)
    opened = open_runtime(settings, model, need, keep_profile=False)
    with opened as runtime, ProgressBar("measuring") as progress:
        counted = _Repeats(repeats, progress)
        if widths:
            report = _widths(runtime, settings, work, widths, counted)
        else:
            report = _planted(runtime, settings, work, lists.plant, counted)
        report = {**described(runtime, work, repeats), **report}
    if as_json:
        print_json(report)
    else:
        click.echo((_width_lines if widths else _planted_lines)(report))


class _Repeats:
    """Measures workloads, each with a warm-up repeat that is not counted."""

    def __init__(self, repeats: int, progress: ProgressBar) -> None:
        self._repeats, self._progress = repeats, progress
        self._seed = self._done = self._total = 0

    def expect(self, workloads: int) -> None:
        self._total += workloads * (self._repeats + 1)

    def prepared(self, done: int, total: int, what: str) -> None:
        """Say that a step has been captured."""
        self._progress(self._done, self._total, f"preparing {done}/{total}: {what}")

    def __call__(
        self, runtime: Runtime, work: Workload, draft: bool
    ) -> tuple[list[Run], list[Usage]]:
        runs, usages = [], []
        for repeat in range(self._repeats + 1):
            ended: list[Usage] = []
            found = measure(runtime, work, self._seed, draft=draft, ended=ended.append)
            # No repeat has the prompts of another.
            self._seed, self._done = self._seed + 1, self._done + 1
            self._progress(self._done, self._total, "")
            if repeat:
                runs.append(found)
                usages += ended
        return runs, usages


@contextmanager
def _engine(
    runtime: Runtime, loaded: LoadedModel, limits: SchedulerLimits, drafter: Drafter | None = None
) -> Iterator[Runtime]:
    """The runtime with an engine of its own on the loaded model."""
    from kinfolk.engine.engine import Engine

    with Engine(loaded, limits, drafter) as engine:
        yield replace(runtime, engine=engine)
    del engine
    gc.collect()  # captured steps keep memory of the device


def _drafter_report(drafter: LoadedDrafter) -> dict[str, Any]:
    return {
        "name": drafter.name,
        "file": None if drafter.file is None else str(drafter.file.path),
        "chain": drafter.chain,
        "tree": drafter.tree,
        "depth": drafter.plan.depth,
    }


def _drafter_line(drafter: dict[str, Any]) -> tuple[str, str]:
    shapes = " or ".join(
        f"a {shape} of {drafter[shape]}" for shape in ("chain", "tree") if drafter[shape]
    )
    what = f"{shapes} tokens, up to {drafter['depth']} deep"
    return ("drafter", f"{drafter['name']}: {what}")


# -- widths ---------------------------------------------------------------------------------------


def _widths(
    runtime: Runtime, settings: Settings, work: Workload, widths: Sequence[int], repeat: _Repeats
) -> dict[str, Any]:
    """The time of a step for each number of rows: without the drafter with weights, and with it
    where it proposes as many."""
    from kinfolk.engine.runtime import scheduler_limits
    from kinfolk.spec.random_drafts import RandomDrafts

    loaded = runtime.loaded
    drafter = loaded.drafter
    limits = replace(scheduler_limits(loaded, settings), widths="fixed")
    # With fixed widths, a drafter that has both proposes chains.
    proposed = 0 if drafter is None else drafter.chain or drafter.tree
    wide = [rows for rows in widths if 1 < rows <= proposed + 1]
    repeat.expect(len(widths) + len(wide) + 2 * (drafter is not None))

    def times(own: Runtime, rows: Sequence[int]) -> dict[int, float]:
        runs = {each: repeat(own, replace(work, rows=each), each > 1)[0] for each in rows}
        return {each: step_milliseconds(found) for each, found in runs.items()}

    host = replace(limits, max_draft=max(widths) - 1)
    random = RandomDrafts(runtime.info.vocabulary)
    with _engine(runtime, replace(loaded, drafter=None), host, random) as own:
        steps, engine = times(own, widths), own.engine.stats()
        uncapturable = own.engine.uncapturable_ops()
    drafted: dict[int, float] = {}
    without: dict[int, float] = {}
    if drafter is not None:
        with _engine(runtime, loaded, limits) as own:
            drafted = times(own, [1, *wide])
        # The first engine of a process is up to 2 % faster than later ones.
        with _engine(runtime, replace(loaded, drafter=None), host, random) as own:
            without = times(own, [1])
    off = drafted.pop(1, None)
    return {
        "drafter": None
        if drafter is None
        else {
            **_drafter_report(drafter),
            "off_step_milliseconds": off,
            "without_step_milliseconds": without[1],
        },
        "widths": [
            _width(rows, steps, drafted.get(rows), needs_draft=drafter is not None and rows > 1)
            for rows in widths
        ],
        "engine": engine,
        "uncapturable_ops": uncapturable,
    }


def _width(
    rows: int, steps: dict[int, float], drafted: float | None, *, needs_draft: bool
) -> dict[str, Any]:
    step = steps[rows]
    whole = drafted if needs_draft else step
    return {
        "rows": rows,
        "step_milliseconds": step,
        "ratio": round(step / steps[1], 4),
        "drafted_step_milliseconds": drafted,
        "draft_milliseconds": None if drafted is None else round(drafted - step, 4),
        "break_even_tokens": None if whole is None else round(whole / steps[1], 4),
    }


def _width_lines(report: dict[str, Any]) -> str:
    drafter = report["drafter"]
    lines = description_lines(report)
    names = {"rows": "rows", "step_milliseconds": "step", "ratio": "ratio"}
    if drafter is not None:
        off = f"{drafter['off_step_milliseconds']} ms a step of one row without a draft, "
        off += f"{drafter['without_step_milliseconds']} ms if it is not there"
        lines += [_drafter_line(drafter), ("drafter off", off)]
        names |= {"drafted_step_milliseconds": "with draft", "draft_milliseconds": "draft"}
    names["break_even_tokens"] = "break even"
    lines += [(f"no graph: {name}", why) for name, why in report["uncapturable_ops"].items()]
    return f"{table(lines)}\n\n{_columns(report['widths'], names)}"


# -- planted acceptance ---------------------------------------------------------------------------


def _planted(
    runtime: Runtime, settings: Settings, work: Workload, lengths: Sequence[float], repeat: _Repeats
) -> dict[str, Any]:
    """The speed at planted lengths, and without drafts, each in an engine that knows nothing of
    the others."""
    from kinfolk.engine.runtime import scheduler_limits
    from kinfolk.spec.plant import OUTPUT_INVALID, PlantedAcceptance

    loaded = runtime.loaded
    drafter = loaded.drafter
    if drafter is None:
        raise SettingsError(
            "--plant runs a drafter with weights, and there is none; name its file, for example, "
            "with --draft-model"
        )
    if loaded.hooks.is_overruled("verify"):
        raise SettingsError(
            f"--plant cannot replace what a policy accepts (--policy {','.join(settings.policy)}); "
            "leave out one of them"
        )
    depth, device = drafter.plan.depth, loaded.device
    planted = [PlantedAcceptance.of(length, depth, device) for length in lengths]
    limits = scheduler_limits(loaded, settings)
    repeat.expect(1 + len(lengths))
    with _engine(runtime, loaded, limits) as own:
        runs, usages = repeat(own, work, False)
    plain = _speed(runs, usages)
    rows = [{"planted": None, "chance": None, **plain, "ratio": 1.0}]
    for profile in planted:
        changed = replace(loaded, drafter=replace(drafter, planted=profile))
        with _engine(runtime, changed, limits) as own:
            # Steps of many sizes follow, and a server has captured them before its port opens.
            own.engine.warm_up(repeat.prepared)
            runs, usages = repeat(own, replace(work, rows=drafter.rows + 1), True)
        rows.append(_planted_row(profile, _speed(runs, usages), plain))
    return {
        "output_invalid": OUTPUT_INVALID,
        "drafter": _drafter_report(drafter),
        "draft_widths": settings.draft_widths,
        "planted": rows,
    }


def _planted_row(
    profile: PlantedAcceptance, speed: dict[str, Any], plain: dict[str, Any]
) -> dict[str, Any]:
    ratio = speed["generate_tokens_per_second"] / plain["generate_tokens_per_second"]
    return {
        "planted": profile.length,
        "chance": round(profile.chance, 4),
        **speed,
        "ratio": round(ratio, 4),
        "output_invalid": True,
    }


def _speed(runs: list[Run], usages: list[Usage]) -> dict[str, Any]:
    """Steps that were narrower because the answer ended are in ``accept_length`` and ``rows``, and
    in nothing else."""
    counts = DraftCounts.total(usage.drafts for usage in usages)
    steps = sum(usage.steps for usage in usages)
    return {
        "generate_tokens_per_second": round(
            statistics.median(run.tokens / run.decode for run in runs), 2
        ),
        "step_milliseconds": step_milliseconds(runs),
        "tokens_per_step": round(
            sum(run.tokens for run in runs) / sum(run.lane_steps for run in runs), 4
        ),
        "full_length": round(full_length(counts), 4) if counts.steps else None,
        "accept_length": round(counts.accept_length, 4) if counts.steps else None,
        "rows_per_step": round(1 + counts.drafted / steps, 4),
        "drafting_steps": counts.steps,
        "steps": steps,
    }


def full_length(counts: DraftCounts) -> float:
    """The mean tokens of a step at full depth: 1 + the chances that so many tokens are accepted,
    each the product of the parts of drafts that reached a place and were accepted there."""
    length, chance = 1.0, 1.0
    for reached, kept in zip(counts.reached, counts.kept, strict=True):
        chance *= kept / reached if reached else 0.0
        length += chance
    return length


def _planted_lines(report: dict[str, Any]) -> str:
    lines = [
        *description_lines(report),
        _drafter_line(report["drafter"]),
        ("widths", report["draft_widths"]),
    ]
    names = {
        "planted": "planted",
        "chance": "chance",
        "full_length": "full depth",
        "accept_length": "accept length",
        "tokens_per_step": "tokens a step",
        "rows_per_step": "rows",
        "step_milliseconds": "step",
        "generate_tokens_per_second": "tok/s",
        "ratio": "ratio",
    }
    columns = _columns(report["planted"], names, nothing="none")
    return f"{report['output_invalid']}\n\n{table(lines)}\n\n{columns}"


# -- text -----------------------------------------------------------------------------------------


def _columns(rows: Sequence[dict[str, Any]], names: dict[str, str], nothing: str = "-") -> str:
    def cell(row: dict[str, Any], key: str) -> str:
        value = row[key]
        if value is None:
            return nothing if key == next(iter(names)) else "-"
        return f"{value:.3f}" if isinstance(value, float) and key != "planted" else f"{value:g}"

    return table([list(names.values()), *([cell(row, key) for key in names] for row in rows)])
