"""``kinfolk synth``: writes a full-size model file with random weights, for benchmarks and
tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinfolk.cli.console import ProgressBar, note, print_json, size, table
from kinfolk.cli.loading import discover, read_settings
from kinfolk.cli.options import SEED, json_option
from kinfolk.door import ask_each

if TYPE_CHECKING:
    from kinfolk.descriptors import Family


@click.command(
    epilog="""\b
Examples:
  kinfolk synth --list
  kinfolk synth SHAPE model.gguf
  kinfolk synth SHAPE model.gguf --layers 4 --mix q8_0"""
)
@click.argument("shape", required=False)
@click.argument("out", required=False, type=click.Path(path_type=Path))
@click.option("--list", "listing", is_flag=True, help="List the shapes of installed families.")
@click.option("--layers", type=click.IntRange(min=1), help="Layers. Default: as released.")
@click.option("--mix", default="", help="Mix of tensor types. Default: the published one.")
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="Same seed, same file.",
)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@json_option
@click.pass_context
def synth(
    ctx: click.Context,
    /,
    shape: str | None,
    out: Path | None,
    listing: bool,
    layers: int | None,
    mix: str,
    seed: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write OUT: a model file of the released SHAPE with random, well-scaled weights.

    Types, sizes and vocabulary are those of the published file, so loading and speed are the same;
    its text is meaningless.
    """
    registry = discover(read_settings(ctx))
    families = [provided.value for provided in registry.families.values()]
    if listing:
        _list(families, as_json)
        return
    if shape is None or out is None:
        raise click.UsageError("name a SHAPE and the file to write; --list shows the shapes")
    from kinfolk.synth.plan import find_shape, plan_synthetic
    from kinfolk.synth.write import write_synthetic

    plan = plan_synthetic(find_shape(shape, families), layers=layers or 0, mix=mix)
    note(
        f"{plan.shape.name}: {plan.layers} layers, {plan.parameters / 1e6:,.0f} M parameters, "
        f"{plan.mix}, {size(plan.nbytes)}"
    )
    with ProgressBar("writing") as progress:
        write_synthetic(plan, out, seed=seed, overwrite=overwrite, progress=progress)
    if as_json:
        print_json(
            {
                "path": str(out),
                "shape": plan.shape.name,
                "layers": plan.layers,
                "mix": plan.mix,
                "parameters": plan.parameters,
                "bytes": plan.nbytes,
                "types": dict(plan.types),
            }
        )


def _list(families: Sequence[Family], as_json: bool) -> None:
    answers = ask_each(families, lambda family: family.shapes())
    listed = [(shape, family.name) for family, shapes in answers for shape in shapes]
    if as_json:
        print_json(
            [
                {
                    "name": shape.name,
                    "family": family,
                    "layers": shape.layers,
                    "mixes": list(shape.mixes),
                }
                for shape, family in listed
            ]
        )
        return
    rows = [
        (shape.name, family, f"{shape.layers} layers", ", ".join(shape.mixes))
        for shape, family in listed
    ]
    click.echo(table(rows))
