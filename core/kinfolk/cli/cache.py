"""``kinfolk cache``: shows, checks and removes what the prefix cache keeps on the disk."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kinfolk.cli.console import ProgressBar, note, print_json, size, table
from kinfolk.cli.loading import read_settings
from kinfolk.cli.options import json_option, settings_options
from kinfolk.errors import OutputError

T = TypeVar("T")

if TYPE_CHECKING:
    from kinfolk.settings import Settings
    from kinfolk.state.disk_admin import Damage, ListedModel, ListedPoint, PrefixFolder

_FIRST_TOKENS: Final = 16
_STEPS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@click.group(
    epilog="""\b
Examples:
  kinfolk cache ls                   what is kept, model by model
  kinfolk cache ls --points          and every point with its hash
  kinfolk cache show 3f9a            one point: model, tokens, tensors
  kinfolk cache verify               read everything and check it
  kinfolk cache rm 3f9a before-lunch
  kinfolk cache rm --model toy-1b   all points of one model

\b
A point is the state of a model after the first tokens of a prompt. A prompt that begins
with the same tokens starts from there instead of computing them again, also after a
restart. Points share the chunks of 64 tokens that they have in common, so removing one
frees only what no other needs. A point with a name is a snapshot: the limit of the
cache never removes it, `rm` does.

\b
Nothing but the files of the cache in CACHE_DIR/prefix is ever touched."""
)
def cache() -> None:
    """Show, check and remove the prefixes that are kept on the disk.

    Loads no model. Servers that use the cache may be running.
    """


@cache.command(
    epilog="""\b
Examples:
  kinfolk cache ls
  kinfolk cache ls --points
  kinfolk cache ls --json | jq '.models[].points[].names'"""
)
@click.option("--points", "listed", is_flag=True, help="List every point, the last used first.")
@json_option
@settings_options("cache_dir")
@click.pass_context
def ls(ctx: click.Context, /, listed: bool, as_json: bool, **rest: Any) -> None:
    """List what is kept: models, points, tokens, bytes, last use and hits."""
    settings = read_settings(ctx)
    folder = _opened(settings)
    models = folder.models()
    if as_json:
        print_json(
            {
                "folder": str(folder.path),
                "bytes": folder.nbytes,
                "limit": int(settings.cache_disk * 2**30) or None,
                "models": [_model_report(model) for model in models],
            }
        )
        return
    if not models:
        click.echo(f"nothing is kept in {folder.path}")
        return
    rows = [("model", "salt", "points", "tokens", "size", "last used", "hits")]
    click.echo(table(rows + [_model_row(model) for model in models]))
    for model in models:
        names = [f"{name} ({p.info.length} tokens)" for p in model.points for name in p.names]
        if names and not listed:
            click.echo(f"\nsnapshots of {model.name}: {', '.join(sorted(names))}")
        if listed and model.points:
            click.echo(f"\npoints of {model.name} ({_short(model.salt)})")
            points = sorted(model.points, key=lambda point: -point.hits.used)
            head = [("hash", "tokens", "size", "last used", "hits", "names")]
            click.echo(table(head + [_point_row(point) for point in points]))
    click.echo(f"\n{size(folder.nbytes)} in {folder.path}")


@cache.command(
    epilog="""\b
Examples:
  kinfolk cache show 3f9a
  kinfolk cache show before-lunch --json"""
)
@click.argument("point", metavar="HASH")
@json_option
@settings_options("cache_dir")
@click.pass_context
def show(ctx: click.Context, /, point: str, as_json: bool, **rest: Any) -> None:
    """Show the header of one point, what it belongs to, and its first tokens.

    HASH is the beginning of its hash, or its name.
    """
    folder = _opened(read_settings(ctx))
    found = folder.find(point)
    header, packed = folder.header(found.info)
    tokens = array("q")
    tokens.frombytes(packed[: _FIRST_TOKENS * tokens.itemsize])
    (model,) = (one for one in folder.models() if one.salt == found.info.salt)
    record = {} if model.record is None else model.record.as_dict()
    report = {
        **_point_report(found),
        **record,
        "salt": _hex(header.salt),
        "parent": _hex(header.parent),
        "full_chunks": len(header.chain),
        "first_chunk_of_each_pool": list(header.first),
        "tensors": len(header.tensors),
        "paged_by": header.paging or None,
        "first_tokens": tokens.tolist(),
    }
    if as_json:
        print_json(report)
        return
    report["bytes"] = size(found.nbytes)
    report["last_used"] = _ago(found.hits.used)
    report["names"] = ", ".join(found.names) or "none"
    rows = [(key.replace("_", " "), _shown(value)) for key, value in report.items()]
    click.echo(table(rows))


@cache.command(
    epilog="""\b
Examples:
  kinfolk cache verify
  kinfolk cache verify --remove"""
)
@click.option("--remove", is_flag=True, help="Remove damaged files, and points that need them.")
@settings_options("cache_dir")
@click.pass_context
def verify(ctx: click.Context, /, remove: bool, **rest: Any) -> None:
    """Read every file and check its header, checksums, hashes of tokens, and chunks.

    Exits with 1 if anything is damaged and was not removed. Damaged entries are never used, also
    without this command: they are dropped when they are read.
    """
    folder = _opened(read_settings(ctx))
    with ProgressBar("checking", at_once=True) as progress:
        damage = folder.check(progress)
    for one in damage:
        click.echo(f"{one.path}: {one.reason}")
    points = sum(len(model.points) for model in folder.models())
    if not damage:
        click.echo(f"{points} points, {size(folder.nbytes)}: nothing is damaged")
    elif remove:
        nothing: tuple[list[Damage], int] = ([], 0)
        removed, freed = _changed(folder, lambda: folder.remove_damage(damage), nothing)
        click.echo(f"removed {len(removed)} damaged files and what needs them: {size(freed)}")
        if left := len(damage) - len(removed):
            note(f"{left} files cannot be read and were left")
            ctx.exit(1)
    else:
        note(
            f"{len(damage)} files are damaged; 'kinfolk cache verify --remove' removes those that "
            "can be read"
        )
        ctx.exit(1)


@cache.command(
    epilog="""\b
Examples:
  kinfolk cache rm 3f9a 77c0d1
  kinfolk cache rm before-lunch
  kinfolk cache rm --model toy-1b
  kinfolk cache rm --all"""
)
@click.argument("points", nargs=-1, metavar="[HASH]...")
@click.option("--model", metavar="MODEL", help="Remove all of a model: its name, or its salt.")
@click.option("--all", "everything", is_flag=True, help="Remove everything.")
@settings_options("cache_dir")
@click.pass_context
def rm(
    ctx: click.Context,
    /,
    points: tuple[str, ...],
    model: str | None,
    everything: bool,
    **rest: Any,
) -> None:
    """Remove points, with the chunks that no other point needs.

    HASH is the beginning of a hash, or a name. A server that uses the cache goes on without them.
    """
    if bool(points) + (model is not None) + everything != 1:
        raise click.UsageError("name points, or --model MODEL, or --all")
    folder = _opened(read_settings(ctx))
    if points:
        found = [folder.find(word).info for word in points]
        what = f"{len(set(found))} points"
        freed = _changed(folder, lambda: folder.remove(list(set(found))), 0)
    else:
        models = folder.models() if model is None else [folder.find_model(model)]
        what = f"{sum(len(one.points) for one in models)} points of {len(models)} models"
        freed = _changed(folder, lambda: folder.remove_models([one.salt for one in models]), 0)
    click.echo(f"removed {what}: {size(freed)}")


def _opened(settings: Settings) -> PrefixFolder:
    from kinfolk.state.disk import PREFIX_FOLDER
    from kinfolk.state.disk_admin import PrefixFolder

    return PrefixFolder(settings.cache_dir / PREFIX_FOLDER)


def _changed(folder: PrefixFolder, change: Callable[[], T], nothing: T) -> T:
    """What a change returns, ``nothing`` in an empty folder; an error of the disk becomes one
    line."""
    if not folder.models():
        return nothing
    try:
        return change()
    except OSError as error:
        raise OutputError.of(folder.path, error) from None


def _model_row(model: ListedModel) -> tuple[str, ...]:
    return (
        model.name,
        _short(model.salt),
        str(len(model.points)),
        str(sum(point.info.length for point in model.points)),
        size(model.nbytes),
        _ago(max((point.hits.used for point in model.points), default=None)),
        str(sum(point.hits.count for point in model.points)),
    )


def _point_row(point: ListedPoint) -> tuple[str, ...]:
    return (
        _short(point.info.key),
        str(point.info.length),
        size(point.nbytes),
        _ago(point.hits.used),
        str(point.hits.count),
        ", ".join(point.names),
    )


def _model_report(model: ListedModel) -> dict[str, Any]:
    return {
        "salt": _hex(model.salt),
        "bytes": model.nbytes,
        **({} if model.record is None else model.record.as_dict()),
        "points": [_point_report(point) for point in model.points],
    }


def _point_report(point: ListedPoint) -> dict[str, Any]:
    return {
        "hash": _hex(point.info.key),
        "tokens": point.info.length,
        "bytes": point.nbytes,
        "last_used": point.hits.used,
        "hits": point.hits.count,
        "names": list(point.names),
    }


def _hex(known: int) -> str:
    from kinfolk.state.chain_hash import hex_of

    return hex_of(known)


def _short(known: int) -> str:
    from kinfolk.state.disk_admin import SHORT_HASH

    return _hex(known)[:SHORT_HASH]


def _ago(moment: float | None) -> str:
    """``3 h ago``; of ``None``, a dash."""
    if moment is None:
        return "-"
    seconds = max(0.0, time.time() - moment)
    for unit, name in _STEPS:
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name} ago"
    return "now"


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
