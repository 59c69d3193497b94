"""``kinfolk plan``: memory plan of a model on a device, without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kinfolk.cli.console import print_json, size, table
from kinfolk.cli.loading import (
    check_model,
    check_readers,
    discover,
    loading,
    model_path,
    read_settings,
)
from kinfolk.cli.options import (
    COMPRESSION,
    ENGINE,
    LOADING,
    PREFIXES,
    json_option,
    model_argument,
    settings_options,
)
from kinfolk.plans import Paged, StatePlan
from kinfolk.types import CHUNK_POSITIONS

if TYPE_CHECKING:
    from kinfolk.engine.preparing import Prepared
    from kinfolk.settings import Settings


@click.command(
    epilog="""\b
Examples:
  kinfolk plan model.gguf
  kinfolk plan model.gguf --memory 24 --context 49152
  kinfolk plan model.gguf --slots 4 --kv-codec f16 --json"""
)
@model_argument
@json_option
@settings_options(*LOADING, *ENGINE, *PREFIXES, *COMPRESSION)
@click.pass_context
def plan(ctx: click.Context, /, model: str | None, as_json: bool, **rest: Any) -> None:
    """Show how the model in FILE would divide the device's memory, and how much state fits.

    Reads only the header of the file. Without FILE: the bundled model. `run` and `serve` follow the
    same plan. Options that do not fit are refused with the arithmetic.
    """
    settings = read_settings(ctx)
    registry = discover(settings)
    path = model_path(model, registry)
    check_model(path, settings, registry)
    check_readers(settings, registry)
    with loading(path):
        from kinfolk.engine.preparing import prepare_model
        from kinfolk.engine.prompt_scorer import planned_beside

        beside, left = planned_beside(settings, registry)
        ready = prepare_model(path, left, registry)
    with ready.file:
        ready.drafters.close(ready.file)  # what is reported of it was read with the header
        if as_json:
            others = {
                "prompt_scorer": beside.get("prompts", 0),
                "chunk_scorer": beside.get("chunks", 0),
            }
            print_json(_report(ready, settings) | others)
        else:
            click.echo(_as_text(ready, settings, beside))


def _report(ready: Prepared, settings: Settings) -> dict[str, Any]:
    memory = ready.memory
    return {
        "device": str(ready.device),
        "weights": ready.form,
        "usable": memory.usable,
        "parts": memory.parts,
        "total": memory.total,
        "left_to_others": memory.others,
        "demoted_checkpoints": (memory.limits.host_bytes or 0) - memory.paged,
        "paged": memory.paged,
        "residency": None if ready.residency is None else asdict(ready.residency),
        "experts": _experts(ready),
        "disk": int(settings.cache_disk * 2**30),
        "drafters": ready.drafters.report(),
        "limits": asdict(memory.limits),
    }


def _as_text(ready: Prepared, settings: Settings, beside: Mapping[str, int]) -> str:
    from kinfolk.engine.preparing_drafters import draft_line

    memory, limits = ready.memory, ready.memory.limits
    rows = [(name, size(nbytes)) for name, nbytes in memory.parts.items()]
    rows.append(("sum", size(memory.total)))
    if memory.others:
        rows.append(("left to others", size(memory.others)))
    rows.append((f"usable on {ready.device}", size(memory.usable)))
    rows += [(f"the scorer of {what} beside it", size(taken)) for what, taken in beside.items()]
    rows.append(("weights are kept as", ready.form))
    rows += [("drafts", draft_line(row)) for row in ready.drafters.report()]
    rows.append(("keys and values as", _storage(ready.plan)))
    rows.append(("context of a sequence", f"{limits.context} of {ready.config.context} positions"))
    spare = f", {limits.spare_slots} spare slot" if limits.spare_slots else ""
    checkpoints = f"{limits.checkpoints} checkpoints{spare}"
    rows.append(("sequences at once", f"{limits.slots}, and {checkpoints}"))
    rows.append(("checkpoints in host memory", size((limits.host_bytes or 0) - memory.paged)))
    if ready.residency is not None:
        budget = ready.residency.chunks * CHUNK_POSITIONS
        rows.append(("of a longer sequence", f"{budget} positions on the device (--kvflash)"))
        rows.append(("its chunks in host memory", size(memory.paged)))
        rows.append(("its chunks are chosen by", _scorers(ready)))
    rows += _expert_rows(ready)
    if settings.cache_disk:
        rows.append(("prefixes on the disk", size(int(settings.cache_disk * 2**30))))
    for window, blocks in zip(ready.plan.windows, limits.blocks, strict=True):
        what = "pool" if window is None else f"pool of window {window}"
        rows.append((what, f"{blocks * CHUNK_POSITIONS} positions over all sequences"))
    return table(rows)


def _experts(ready: Prepared) -> dict[str, Any] | None:
    """Where experts are; ``None`` if all are on the device, or there are none."""
    plan = ready.experts
    if not plan.partial:
        return None
    return {
        "layers": plan.sizes.layers,
        "bays": plan.bays,
        "record_bytes": plan.sizes.nbytes,
        "device_bytes": plan.device_bytes,
        "landing_bytes": plan.landing,
        "host_bytes": plan.host_bytes,
        "worst_token_bytes": plan.worst_token_bytes,
        "usual_token_bytes": plan.usual_token_bytes,
        "swap": plan.swap,
    }


def _expert_rows(ready: Prepared) -> list[tuple[str, str]]:
    plan = ready.experts
    if not plan.partial:
        return []
    used = [(bays, n) for bays, n in zip(plan.bays, plan.sizes.layers, strict=True) if n]
    fewest, most = min(bays for bays, _ in used), max(bays for bays, _ in used)
    bays = str(most) if fewest == most else f"{fewest} to {most}"
    share = plan.device_bytes / plan.sizes.total
    rows = [
        (
            "experts on the device",
            f"{bays} of {max(n for _, n in used)} a layer, {share:.0%} of all (--expert-budget)",
        ),
        ("landing bays for prompts", size(plan.landing) if plan.landing else "no room: in place"),
        ("experts in host memory", size(plan.host_bytes)),
        ("a token reads of them", f"{size(plan.worst_token_bytes)} at worst"),
    ]
    usual = plan.usual_token_bytes
    if usual is not None:
        rows.append(("by the profile", size(usual)))
    if not plan.swap:
        rows.append(("experts in bays", "those of the start stay (--expert-swap off)"))
    return rows


def _scorers(ready: Prepared) -> str:
    """Who scores chunks, with the layers whose attention does."""
    assert ready.residency is not None
    scored = ready.memory.limits.scored
    layers = "" if scored is None else f" (layers {', '.join(map(str, scored.layers))})"
    return (", ".join(ready.residency.scorers) or "nobody: the first and the last stay") + layers


def _storage(plan: StatePlan) -> str:
    """Storage format of keys and values: one for all, or one for each section by name."""
    formats: dict[str, set[str]] = {}
    for layer in plan.layers:
        for section in layer.sections if isinstance(layer, Paged) else ():
            formats.setdefault(section.name, set()).add(section.codec.format)
    different = set().union(*formats.values())
    if len(different) < 2:
        return "".join(different) or "there are none"
    return ", ".join(f"{name} {'/'.join(sorted(used))}" for name, used in formats.items())
