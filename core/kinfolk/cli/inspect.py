"""``kinfolk inspect``: shows metadata and tensors of a model file."""

from __future__ import annotations

from collections import Counter
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, Final

import click

from kinfolk.cli.console import print_json, size, table
from kinfolk.cli.loading import discover, model_path, read_settings
from kinfolk.cli.options import json_option, model_argument, settings_options
from kinfolk.errors import KinfolkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinfolk.draft_api import TargetFacts
    from kinfolk.gguf.file import GGUFFile
    from kinfolk.gguf.values import Value
    from kinfolk.quant.formats import QuantFormats
    from kinfolk.registry import Registry
    from kinfolk.settings import Settings

_MAX_ITEMS: Final = 8
"""Most items of an array to print."""

_STEP_ROWS: Final = 512
"""Rows of a step: of a plan of state that no memory is allocated for."""

_MAX_WIDTH: Final = 100
"""Most characters of a value to print."""


@click.command(
    epilog="""\b
Examples:
  kinfolk inspect model.gguf
  kinfolk inspect model.gguf --json | jq .metadata
  kinfolk inspect model.gguf --no-tensors"""
)
@model_argument
@click.option("--tensors/--no-tensors", default=True, help="List the tensors.")
@json_option
@settings_options("model_family")
@click.pass_context
def inspect(
    ctx: click.Context, /, model: str | None, tensors: bool, as_json: bool, **rest: Any
) -> None:
    """Show metadata, tensors and tensor types of FILE, and the installed family that loads it.

    Reads only the header of the file. Without FILE: the bundled model.
    """
    settings = read_settings(ctx)
    registry = discover(settings)
    from kinfolk.gguf.file import GGUFFile

    formats = registry.formats()
    with GGUFFile.open(model_path(model, registry), formats.tensor_types()) as file:
        report = describe(file, registry, settings)
        report["drafters"] = _drafters(file, registry, settings, formats)
    if not tensors:
        del report["tensors"]
    if as_json:
        print_json(report)
    else:
        click.echo(_as_text(report))


def describe(file: GGUFFile, registry: Registry, settings: Settings) -> dict[str, Any]:
    """Header and tensors of a file as JSON-compatible data; long arrays are truncated."""
    architecture = file.metadata.architecture
    family, problem = _family(registry, settings, architecture)
    types: Counter[str] = Counter()
    for tensor in file.inventory.values():
        types[tensor.type_name] += tensor.nbytes
    return {
        "files": [str(path) for path in file.paths],
        "version": file.version,
        "architecture": architecture,
        "family": family,
        "problem": problem,
        "bytes": file.inventory.nbytes,
        "parameters": sum(prod(tensor.shape) for tensor in file.inventory.values()),
        "types": dict(types.most_common()),
        "metadata": {key: _plain(file.metadata.value(key)) for key in file.metadata},
        "tensors": [
            {
                "name": tensor.name,
                "type": tensor.type_name,
                "shape": list(tensor.shape),
                "bytes": tensor.nbytes,
            }
            for tensor in file.inventory.values()
        ],
    }


def _drafters(
    file: GGUFFile, registry: Registry, settings: Settings, formats: QuantFormats
) -> list[dict[str, Any]]:
    """What drafts for the model in a file, or reads the file as a drafter's own."""
    from kinfolk.engine.preparing_drafters import prepare_drafters

    readers = [
        {"name": one.value.name, "source": one.source, "reads": True}
        for one in registry.drafters.values()
        if one.value.reads(file.metadata.architecture)
    ]
    try:
        facts = _facts(file, registry, settings)
        drafters = prepare_drafters(settings, registry, formats, file, facts)
    except KinfolkError:
        return readers  # no family runs the file, or it cannot be drafted for
    drafters.close(file)
    return [*readers, *drafters.report()]


def _facts(file: GGUFFile, registry: Registry, settings: Settings) -> TargetFacts:
    """What drafters may know of a model, without what torch is needed for."""
    from kinfolk.draft_api import TargetFacts
    from kinfolk.hooks import CoreHooks, ModelHookCaller, family_provider
    from kinfolk.plans import StateLimits

    family = registry.family_for(file.metadata.architecture, settings.model_family)
    config = family.read_config(file.metadata)
    limits = StateLimits(1, 0, (), config.context, _STEP_ROWS)
    hooks = ModelHookCaller(family_provider(family, config), (CoreHooks(),))
    return TargetFacts(
        path=file.path,
        family=family.name,
        metadata=file.metadata,
        config=config,
        state=hooks.allocate_cache(config, limits),
        context=config.context,
        draft_tokens=settings.draft_tokens,
        options=settings.draft_option,
    )


def _family(
    registry: Registry, settings: Settings, architecture: str
) -> tuple[str | None, str | None]:
    """(name of the family that loads the file, ``None``) or (``None``, reason)."""
    try:
        return registry.family_for(architecture, settings.model_family).name, None
    except KinfolkError as error:
        return None, str(error)


def _plain(value: Value) -> Any:
    content: Any = value.content
    if not value.is_array:
        return _scalar(content)
    first = [_scalar(item) for item in content[:_MAX_ITEMS]]
    if len(value) <= _MAX_ITEMS:
        return first
    return {"type": f"array of {value.type}", "length": len(value), "first": first}


def _scalar(item: Any) -> Any:
    """A scalar for JSON; NaN and infinities, which JSON lacks, as text."""
    plain = item.item() if hasattr(item, "item") else item
    return str(plain) if isinstance(plain, float) and not isfinite(plain) else plain


def _as_text(report: dict[str, Any]) -> str:
    head = [
        ("file", ", ".join(report["files"])),
        ("architecture", report["architecture"]),
        ("family", report["family"] or f"none: {report['problem']}"),
        ("parameters", f"{report['parameters'] / 1e6:,.1f} M"),
        ("tensors", size(report["bytes"])),
        ("types", ", ".join(f"{name} {size(n)}" for name, n in report["types"].items())),
        *(("drafter", _draft_line(row)) for row in report["drafters"]),
    ]
    parts = [table(head), "metadata", _indent(_metadata_rows(report["metadata"].items()))]
    if "tensors" in report:
        rows = [
            (t["name"], t["type"], " x ".join(map(str, t["shape"])), size(t["bytes"]))
            for t in report["tensors"]
        ]
        parts += ["tensors, rows first", _indent(rows)]
    return "\n\n".join(parts)


def _draft_line(row: dict[str, Any]) -> str:
    from kinfolk.engine.preparing_drafters import draft_line

    if "reads" in row:
        return f"the file is one of {row['name']} of {row['source']}; name it with --draft-model"
    return draft_line(row)


def _metadata_rows(items: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    rows = []
    for key, value in items:
        if isinstance(value, dict):
            text = f"{value['length']} x {value['type'].removeprefix('array of ')}: "
            text += ", ".join(repr(item) for item in value["first"]) + ", ..."
        else:
            text = repr(value)
        rows.append((key, text if len(text) <= _MAX_WIDTH else text[: _MAX_WIDTH - 4] + " ..."))
    return rows


def _indent(rows: list[Any]) -> str:
    return "\n".join("  " + line for line in table(rows).splitlines())
