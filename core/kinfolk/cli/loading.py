"""From the options of a command to settings, plugins and a loaded model."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinfolk.cli.console import ProgressBar, note
from kinfolk.cli.main import BUILT_IN
from kinfolk.errors import ModelFormatError
from kinfolk.registry import Registry
from kinfolk.settings import Settings, load_settings, options_given, unknown_variables

if TYPE_CHECKING:
    from kinfolk.engine.loading import LoadedModel
    from kinfolk.engine.runtime import Runtime


def read_settings(ctx: click.Context, /, **defaults: Any) -> Settings:
    """Settings of a command: its flags, then the environment, then what suits the command."""
    given = options_given(ctx)
    settings = load_settings(**given)
    unset = {
        name: value for name, value in defaults.items() if name not in settings.model_fields_set
    }
    settings = load_settings(**given, **unset)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(levelname)s: %(name)s: %(message)s"
    )
    for name, close in unknown_variables().items():
        note(f"warning: {name} means nothing here" + (f"; did you mean {close}?" if close else ""))
    return settings


def discover(settings: Settings) -> Registry:
    """The installed plugins. Broken ones are mentioned, and are no reason to stop."""
    registry = Registry.discover(settings, reserved_commands=BUILT_IN.keys())
    for problem in registry.problems():
        note(f"warning: plugin {problem}")
    return registry


def find_model(name: str) -> Path:
    """The model file; :class:`ModelFormatError` with what was probably meant if there is none."""
    path = Path(name).expanduser()
    if path.is_dir():
        held = sorted(file.name for file in path.glob("*.gguf"))
        there = f"it holds {', '.join(held[:5])}" if held else "it holds no .gguf file"
        raise ModelFormatError(f"is a folder, not a model file; {there}", path=path)
    if path.exists():
        return path
    if not path.parent.is_dir():
        raise ModelFormatError(f"no such file; there is no folder {path.parent}", path=path)
    beside = [file.name for file in path.parent.glob("*.gguf")]
    close = difflib.get_close_matches(path.name, beside, n=3, cutoff=0.5)
    # Somebody who leaves out the suffix, or half of a long name, means this one.
    close += [other for other in beside if other.startswith(path.name) and other not in close]
    hint = f"; did you mean {' or '.join(str(path.parent / other) for other in close)}?"
    raise ModelFormatError("no such file" + (hint if close else ""), path=path)


@contextmanager
def open_runtime(settings: Settings, model: str | None) -> Iterator[Runtime]:
    """The model with its engine, loaded with a progress bar; the bundled one if ``None``."""
    path = None if model is None else find_model(model)
    registry = discover(settings)
    from kinfolk.engine.runtime import Runtime

    with ProgressBar("loading") as progress:
        runtime = Runtime.open(path, settings, registry, progress)
    _announce_compilations(runtime.loaded)
    with runtime:
        yield runtime


@contextmanager
def open_model(settings: Settings, model: str) -> Iterator[LoadedModel]:
    """The model without an engine, for scoring."""
    path = find_model(model)
    registry = discover(settings)
    from kinfolk.engine.loading import load_model

    with ProgressBar("loading") as progress:
        loaded = load_model(path, settings, registry, progress)
    _announce_compilations(loaded)
    with loaded.file:
        yield loaded


def _announce_compilations(loaded: LoadedModel) -> None:
    if loaded.device.type == "cuda":
        from kinfolk_kernels.compiling import announce_compilations

        announce_compilations(note)
