"""``kinfolk doctor``: checks of the installation, and the back end of every op."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from kinfolk.cli.console import ProgressBar, print_json, table
from kinfolk.cli.loading import find_model, read_settings
from kinfolk.cli.main import BUILT_IN
from kinfolk.cli.options import LOADING, json_option, model_argument, settings_options
from kinfolk.errors import KinfolkError
from kinfolk.registry import Registry
from kinfolk.settings import Settings, unknown_variables

if TYPE_CHECKING:
    import torch

    from kinfolk.engine.loading import LoadedModel
    from kinfolk.engine.runtime import Runtime

Status = Literal["ok", "warning", "failed"]

PACKAGES: Final = ("torch", "triton", "tokenizers", "pluggy", "fastapi", "uvicorn")
OPTIONAL: Final = frozenset({"triton"})
SMOKE_TOKENS: Final = 8


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; lines of one ``area`` form a group."""

    area: str
    name: str
    status: Status
    detail: str


@click.command(
    epilog="""\b
Examples:
  kinfolk doctor
  kinfolk doctor --json
  kinfolk doctor -m model.gguf --op linear=reference"""
)
@model_argument
@json_option
@settings_options(*LOADING, "plugins")
@click.pass_context
def doctor(ctx: click.Context, /, model: str | None, as_json: bool, **rest: Any) -> None:
    """Check versions, devices, plugins and op back ends, and generate a few tokens.

    For every op, lists the back end that ran it and why the others did not. The exit code is 1 if a
    check fails.
    """
    settings = read_settings(ctx)
    registry = Registry.discover(settings, reserved_commands=BUILT_IN.keys())
    with ProgressBar("checking", at_once=True):
        checks = [
            *versions(),
            *_environment(),
            *_plugins(registry),
            *_devices(),
            *_smoke(model, settings, registry),
        ]
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        click.echo(_as_text(checks))
    if any(check.status == "failed" for check in checks):
        ctx.exit(1)


def versions() -> Iterator[Check]:
    """The versions of what computes, and of what is missing where it would be of use."""
    from kinfolk.version import __version__

    yield Check("versions", "kinfolk", "ok", __version__)
    yield Check("versions", "python", "ok", f"{platform.python_version()} on {sys.platform}")
    for name in PACKAGES:
        try:
            yield Check("versions", name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            yield _missing(name)


def _missing(name: str) -> Check:
    if name not in OPTIONAL:
        return Check("versions", name, "failed", "not installed")
    if not _has_gpu():
        return Check("versions", name, "ok", "not installed, and not needed without a GPU")
    return Check("versions", name, "warning", "not installed; the GPU is far slower without it")


def _has_gpu() -> bool:
    try:
        import torch
    except Exception:  # _devices reports it
        return False
    return torch.cuda.is_available()


def _environment() -> Iterator[Check]:
    for name, close in unknown_variables().items():
        hint = f"; did you mean {close}?" if close else ""
        yield Check("settings", name, "warning", f"is not a setting of kinfolk{hint}")


def _plugins(registry: Registry) -> Iterator[Check]:
    for record in registry.examined().records:
        status: Status = "failed" if record.status in ("failed", "conflict") else "ok"
        detail = record.reason or " ".join(filter(None, (record.distribution, record.version)))
        if record.status == "skipped":
            detail = f"skipped: {detail}"
        yield Check("plugins", record.name, status, detail)


def _devices() -> Iterator[Check]:
    try:
        import torch
    except Exception as error:  # a broken installation can raise anything
        yield Check("devices", "torch", "failed", f"cannot be imported: {error}")
        return
    yield _matmul_check(torch.device("cpu"), f"{torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"torch is built for CUDA {built}, which finds no device" if built else "torch is CPU"
        yield Check("devices", "cuda", "ok", f"none: {why}")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 2**30
        capability = f"{properties.major}.{properties.minor}"
        detail = f"{properties.name}, {memory:.0f} GiB, compute capability {capability}"
        yield _matmul_check(torch.device("cuda", index), detail)


def _matmul_check(device: torch.device, detail: str) -> Check:
    """Whether a device multiplies matrices correctly."""
    import torch

    try:
        ones = torch.ones(64, 64, device=device)
        correct = bool((ones @ ones == 64).all())
    except RuntimeError as error:
        return Check("devices", str(device), "failed", f"{detail}; cannot compute: {error}")
    if not correct:
        return Check("devices", str(device), "failed", f"{detail}; computes wrong numbers")
    return Check("devices", str(device), "ok", detail)


def _smoke(model: str | None, settings: Settings, registry: Registry) -> Iterator[Check]:
    """Load a model, generate a few tokens, and report weights, back ends and graphs."""
    runtime: Runtime | None = None
    try:
        path = registry.bundled_model() if model is None else find_model(model)
        if path is None:
            detail = "no installed family bundles a model; name one with -m to run it"
            yield Check("computation", "model", "warning", detail)
            return
        from kinfolk.engine.runtime import Runtime as RuntimeClass

        runtime = RuntimeClass.open(path, settings, registry, keep_profile=False)
        yield _generate(runtime)
        yield from _weights(runtime.loaded)
        yield from _backends(runtime)
        yield _graphs(runtime)
        yield from _drafters(runtime.loaded)
    except KinfolkError as error:
        yield Check("computation", "model", "failed", str(error))
    except Exception as error:  # any failure belongs in the report
        yield Check("computation", "model", "failed", f"{type(error).__name__}: {error}")
    finally:
        if runtime is not None:
            runtime.close()


def _drafters(loaded: LoadedModel) -> Iterator[Check]:
    from kinfolk.engine.preparing_drafters import draft_line

    rows = loaded.drafters.report()
    for row in rows:
        yield Check("drafters", row["name"], "ok", draft_line(row))
    if not rows:
        yield Check("drafters", "none", "ok", "every step emits one token (--draft off)")


def _generate(runtime: Runtime) -> Check:
    from kinfolk.engine.answer import Ended
    from kinfolk.engine.generation import Generation
    from kinfolk.engine.options import GenerationOptions
    from kinfolk.engine.prompt import token_prompt

    options = GenerationOptions(
        max_tokens=SMOKE_TOKENS, temperature=0.0, logprobs=0, ignore_eos=True
    )
    prompt = token_prompt(runtime, list(range(min(64, runtime.info.vocabulary))))
    started = time.perf_counter()
    end = next(piece for piece in Generation(runtime, prompt, options) if isinstance(piece, Ended))
    seconds = time.perf_counter() - started
    if end.error is not None or end.tokens != SMOKE_TOKENS:
        return Check("computation", runtime.name, "failed", end.error or "ended too early")
    where = f"{runtime.loaded.device}, {str(runtime.loaded.dtype).removeprefix('torch.')}"
    return Check(
        "computation", runtime.name, "ok", f"{end.tokens} tokens in {seconds:.2f} s on {where}"
    )


def _weights(loaded: LoadedModel) -> Iterator[Check]:
    """Tensors that were repacked for kernels, and tensors that could not be, with the reason."""
    if loaded.packed:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(loaded.packed.items()))
        yield Check("weights", "packed", "ok", f"tensors repacked for kernels: {counts}")
    kept = str(loaded.dtype).removeprefix("torch.")
    for (name, reason), count in sorted(loaded.refused.items()):
        detail = f"{count} tensors stay {kept}: {reason}"
        yield Check("weights", name, "warning", detail)


def _backends(runtime: Runtime) -> Iterator[Check]:
    ops = runtime.loaded.ops
    for op in ops.names:
        ran = [decision for (name, _), decision in sorted(ops.decisions.items()) if name == op]
        others = [name for name in ops.backends(op) if name not in {d.backend for d in ran}]
        if not ran:
            yield Check("ops", op, "ok", f"not used by this model; installed: {', '.join(others)}")
            continue
        detail = ", ".join(decision.backend for decision in ran)
        refused = {pair for decision in ran for pair in decision.refused}
        reasons = [f"{name} refused: {reason}" for name, reason in sorted(refused)]
        reasons += [f"{name} not tried" for name in others if name not in dict(refused)]
        broken = any(known == op for known, _ in ops.broken)
        yield Check("ops", op, "failed" if broken else "ok", "; ".join([detail, *reasons]))


def _graphs(runtime: Runtime) -> Check:
    """Whether steps are captured as CUDA graphs, and if not, why."""
    if not runtime.loaded.graphs:
        why = "--graphs off" if runtime.loaded.device.type == "cuda" else "there is no GPU"
        return Check("graphs", "decoding", "ok", f"not in fixed sizes: {why}")
    reasons = runtime.engine.uncapturable_ops()
    if reasons:
        detail = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        return Check("graphs", "decoding", "warning", f"every step runs eagerly; {detail}")
    stats = runtime.engine.stats()
    detail = f"{stats['captures']} captured, {stats['replays']} replays"
    return Check("graphs", "decoding", "ok", detail)


def _as_text(checks: list[Check]) -> str:
    lines = []
    for area in dict.fromkeys(check.area for check in checks):
        rows = [(f"  {check.name}", _with_status(check)) for check in checks if check.area == area]
        lines += [area, table(rows)]
    bad = sum(check.status == "failed" for check in checks)
    warned = sum(check.status == "warning" for check in checks)
    counts = [f"{bad} failed"] * bool(bad) + [f"{warned} warning{'s' * (warned > 1)}"] * bool(
        warned
    )
    lines.append(", ".join(counts) or "all checks passed")
    return "\n".join(lines)


def _with_status(check: Check) -> str:
    return check.detail if check.status == "ok" else f"{check.status.upper()} {check.detail}"
