"""``kinfolk new-family``: writes the scaffold of a family plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinfolk.cli.console import note, print_json
from kinfolk.cli.loading import discover, read_settings
from kinfolk.cli.options import json_option
from kinfolk.errors import SettingsError
from kinfolk.scaffold.write import NewFamily, write_family

if TYPE_CHECKING:
    from kinfolk.registry import Registry


@click.command(
    "new-family",
    epilog="""\b
Examples:
  kinfolk new-family olive
  kinfolk new-family olive ~/src/kinfolk-olive""",
)
@click.argument("name")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@json_option
@click.pass_context
def new_family(ctx: click.Context, /, name: str, folder: Path | None, as_json: bool) -> None:
    """Write a plugin for a new model family NAME into FOLDER, by default kinfolk-NAME.

    The plugin installs, runs and passes 'kinfolk check NAME' unchanged: a plain decoder, as a
    starting point for yours. Existing files are never overwritten.
    """
    family = NewFamily(name)
    owner = _owner(discover(read_settings(ctx)), name)
    if owner not in (None, family.distribution):
        raise SettingsError(
            f"the installed {owner} already has the name or architecture {name!r}; choose another "
            "name, or uninstall it first"
        )
    folder = folder or Path(family.distribution)
    written = write_family(family, folder)
    if as_json:
        print_json({"folder": str(folder), "files": [str(path) for path in written]})
        return
    if owner is not None:
        note(f"another {owner} is installed; the next command replaces it")
    click.echo(f"{len(written)} files in {folder}. Next:")
    # pip looks up a bare name in the package index.
    dot = "" if folder.is_absolute() or folder.parts[0] == ".." else "./"
    click.echo(f'  pip install -e "{dot}{folder}[test]"')
    click.echo(f"  kinfolk check {name}")
    click.echo(f"{folder / 'README.md'} explains how to adapt it.")


def _owner(registry: Registry, name: str) -> str | None:
    """The distribution whose plugin has the name, or whose family has the architecture."""
    distributions = {record.name: record.distribution for record in registry.records}
    owners = dict(distributions)
    for family, provided in registry.families.items():
        names = {family, *provided.value.architectures}
        owners |= dict.fromkeys(names, distributions[provided.plugin])
    return owners.get(name)
