"""``kinfolk convert``: converts a Hugging Face model directory to a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kinfolk.cli.console import ProgressBar, note, print_json, size
from kinfolk.cli.loading import discover, read_settings
from kinfolk.cli.options import json_option, settings_options
from kinfolk.errors import SettingsError


@click.command(
    epilog="""\b
Examples:
  kinfolk convert ./model-directory model.gguf
  kinfolk convert ./model-directory model-q4.gguf --outtype q4_k_m
  kinfolk convert ./drafter-directory model-draft.gguf --target model.gguf"""
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--outtype",
    default="bf16",
    show_default=True,
    metavar="TYPE",
    help="Tensor type or mix of types, such as f32, f16, bf16, q8_0, q4_0, q4_k_m.",
)
@click.option("--name", default="", help="Model name in the file. Default: the directory's name.")
@click.option(
    "--target",
    type=click.Path(path_type=Path),
    metavar="MODEL",
    help="DIRECTORY is a drafter for this model, a GGUF file or a Hugging Face directory.",
)
@click.option("--no-tokenizer", is_flag=True, help="Leave the tokenizer out.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--workers", type=click.IntRange(min=1), help="Threads. Default: one per core.")
@json_option
@settings_options("model_family")
@click.pass_context
def convert(
    ctx: click.Context,
    /,
    directory: Path,
    out: Path,
    outtype: str,
    name: str,
    target: Path | None,
    no_tokenizer: bool,
    overwrite: bool,
    workers: int | None,
    as_json: bool,
    **rest: Any,
) -> None:
    """Convert the Hugging Face model in DIRECTORY to the GGUF file OUT.

    The installed family of the model defines the conversion. OUT gets its name when it is complete.
    A drafter is converted for the model that it drafts for, whose tokenizer it shares.
    """
    settings = read_settings(ctx)
    registry = discover(settings)
    families = [provided.value for provided in registry.families.values()]
    if settings.model_family is not None:
        families = [family for family in families if family.name == settings.model_family]
        if not families:
            raise SettingsError(f"--model-family {settings.model_family}: no such family")
    if target is not None and no_tokenizer:
        raise SettingsError("--no-tokenizer: a drafter needs the tokenizer of --target")
    from kinfolk.convert.driver import convert as convert_model
    from kinfolk.convert.driver import convert_drafter
    from kinfolk.convert.find import DrafterConverter

    with ProgressBar("converting") as progress:
        options: dict[str, Any] = {
            "outtype": outtype,
            "families": families,
            "formats": registry.formats(),
            "name": name,
            "overwrite": overwrite,
            "progress": progress,
            "workers": workers or 0,
        }
        if target is None:
            result = convert_model(directory, out, tokenizer=not no_tokenizer, **options)
        else:
            drafters = [
                DrafterConverter(provided.value, provided.source)
                for provided in registry.drafters.values()
            ]
            result = convert_drafter(directory, out, target=target, drafters=drafters, **options)
    if as_json:
        print_json(
            {
                "path": str(result.path),
                "family": result.family,
                "bytes": result.nbytes,
                "parameters": result.parameters,
                "types": dict(result.types),
            }
        )
        return
    types = ", ".join(f"{count} {name}" for name, count in result.types.items())
    note(f"{result.path}: {result.family}, {size(result.nbytes)}, tensors: {types}")
