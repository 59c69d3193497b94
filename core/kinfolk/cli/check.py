"""``kinfolk check``: runs the conformance kit on an installed family, drafter or policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from kinfolk.cli.console import dim, note, print_json
from kinfolk.cli.loading import discover, read_settings
from kinfolk.cli.options import json_option
from kinfolk.errors import SettingsError
from kinfolk.registry import Registry
from kinfolk.testing.run import Result, Subject, run_checks

_MARKS = {"passed": "ok", "failed": "FAILED", "not applicable": "-"}


@click.command(
    epilog="""\b
Examples:
  kinfolk check olive
  kinfolk check olive -k trees        those with 'trees' in their name
  kinfolk check olive --json
  kinfolk check ngram                 a drafter
  kinfolk check lenient               a policy"""
)
@click.argument("name")
@click.option("-k", "select", default="", metavar="EXPRESSION", help="Only checks that match.")
@click.option("--trace", is_flag=True, help="Show the traceback of each failure.")
@json_option
@click.pass_context
def check(ctx: click.Context, /, name: str, select: str, trace: bool, as_json: bool) -> None:
    """Check the installed model family, drafter or policy NAME with the conformance kit.

    Writes a tiny model of the family, or of one that the drafter or policy is for, runs it in
    every mode of the runtime and compares it with the plugin's own declarations. The exit code is 1
    if a check fails. Needs the extra 'testing'.
    """
    kind = _kind_of(name, discover(read_settings(ctx)))
    on_result = (lambda result: None) if as_json else _print_result
    results = run_checks(name, kind=kind, select=select, on_result=on_result)
    if as_json:
        print_json(_report(kind, name, results))
    else:
        _print_summary(results, trace)
    if any(result.status == "failed" for result in results):
        ctx.exit(1)


def _kind_of(name: str, registry: Registry) -> Subject:
    """What NAME is; a family comes first."""
    if name in registry.families:
        return "family"
    if name in registry.drafters:
        return "drafter"
    if name in registry.policies:
        return "policy"
    families, drafters, policies = (
        ", ".join(sorted(table)) or "none"
        for table in (registry.families, registry.drafters, registry.policies)
    )
    broken = [problem for problem in registry.problems() if name in problem]
    why = f"; {broken[0]}" if broken else ""
    raise SettingsError(
        f"no family {name!r} is installed; installed: {families}; drafters: {drafters}; "
        f"policies: {policies}{why}"
    )


def _print_result(result: Result) -> None:
    name, bracket, parameter = result.check.removeprefix("test_").partition("[")
    detail = f": {result.detail}" if result.detail else ""
    title = name.replace("_", " ") + bracket + parameter
    line = f"{_MARKS[result.status]:6}  {title}{detail}"
    click.echo(dim(line) if result.status == "not applicable" else line)


def _print_summary(results: Sequence[Result], trace: bool) -> None:
    failed = [result for result in results if result.status == "failed"]
    for result in failed:
        click.echo(f"\n{result.check}\n  {result.title}\n  {result.detail}")
        if trace:
            click.echo(result.trace)
    counts = {
        status: sum(result.status == status for result in results)
        for status in ("passed", "failed", "not applicable")
    }
    click.echo("\n" + ", ".join(f"{count} {status}" for status, count in counts.items()))
    if failed and not trace:
        note("--trace shows tracebacks; -k NAME runs a single check")


def _report(kind: Subject, name: str, results: Sequence[Result]) -> dict[str, Any]:
    return {
        kind: name,
        "ok": all(result.status != "failed" for result in results),
        "checks": [asdict(result) for result in results],
    }
