"""``kinfolk plugins``: what is installed, what it brings, what is wrong."""

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
    """List installed plugins, what they bring, and what is wrong with them.

    A plugin that is broken is listed with the reason; everything else goes on working. What needs
    no file is tried: what families say they bring, and the help of commands.
    """
    settings = read_settings(ctx)
    from kinfolk.registry import Registry, describe

    registry = Registry.discover(settings, reserved_commands=BUILT_IN.keys())
    found = describe(registry.examined())
    if as_json:
        print_json(found)
        return
    for plugin in found:
        click.echo(_line(plugin))
        if plugin["reason"]:
            click.echo(f"  {plugin['reason']}")
        for kind, names in plugin["provides"].items():
            if names:
                click.echo(f"  {kind.replace('_', ' ')}: {', '.join(names)}")


def _line(plugin: dict[str, Any]) -> str:
    source = " ".join(filter(None, (plugin["distribution"], plugin["version"])))
    state = "" if plugin["status"] == "ok" else f"  {plugin['status'].upper()}"
    return f"{plugin['name']}  ({source or plugin['module']}){state}"
