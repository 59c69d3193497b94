"""``kinfolk plugins``: lists installed plugins, what they provide, and their problems."""

from __future__ import annotations

from typing import Any

import click

from kinfolk.cli.console import print_json
from kinfolk.cli.loading import read_settings
from kinfolk.cli.main import BUILT_IN
from kinfolk.cli.options import json_option


@click.command(
    epilog="""\b
Examples:
  kinfolk plugins
  kinfolk plugins --json
  KINFOLK_PLUGINS=name,other kinfolk plugins     only these"""
)
@json_option
@click.pass_context
def plugins(ctx: click.Context, /, as_json: bool) -> None:
    """List installed plugins, what they provide, and their problems.

    A broken plugin is listed with the reason. Checks everything that needs no model file: what
    families declare, and the help of commands.
    """
    settings = read_settings(ctx)
    from kinfolk.registry import Registry, describe

    registry = Registry.discover(settings, reserved_commands=BUILT_IN.keys())
    descriptions = describe(registry.examined())
    if as_json:
        print_json(descriptions)
        return
    for plugin in descriptions:
        click.echo(_line(plugin))
        if plugin["reason"]:
            click.echo(f"  {plugin['reason']}")
        for kind, names in plugin["provides"].items():
            if names:
                click.echo(f"  {kind.replace('_', ' ')}: {', '.join(names)}")
        for summaries in plugin["summaries"].values():
            for name, summary in summaries.items():
                if summary:
                    click.echo(f"    {name}: {summary}")


def _line(plugin: dict[str, Any]) -> str:
    source = " ".join(filter(None, (plugin["distribution"], plugin["version"])))
    state = "" if plugin["status"] == "ok" else f"  {plugin['status'].upper()}"
    return f"{plugin['name']}  ({source or plugin['module']}){state}"
