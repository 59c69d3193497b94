"""Settings, plugins and the loaded model of a command."""

from __future__ import annotations

import difflib
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kinfolk.cli.console import NoteHandler, ProgressBar, note
from kinfolk.cli.main import BUILT_IN
from kinfolk.compress.options import CompressionOptions
from kinfolk.engine.bundled import bundled_model
from kinfolk.errors import ModelFormatError, SettingsError
from kinfolk.registry import Registry
from kinfolk.residency.options import chunk_drafter
from kinfolk.setting_values import home_expanded
from kinfolk.settings import Settings, load_settings, typed_options, unknown_variables

if TYPE_CHECKING:
    from kinfolk.engine.engine import Engine
    from kinfolk.engine.loading import LoadedModel
    from kinfolk.engine.runtime import Runtime
    from kinfolk.gguf.file import GGUFFile

log = logging.getLogger(__name__)

_MODEL_NAME: Final = re.compile(r"[\w.-]+(/[\w.-]+){0,3}(:[\w.-]+)?")
"""``name``, ``name:tag``, ``owner/name`` or ``host/owner/name:tag``."""


def read_settings(ctx: click.Context, /, **defaults: Any) -> Settings:
    """Settings of a command, from its flags, the environment and ``defaults``, in order of
    precedence. Configures logging and warns about unknown variables."""
    settings = load_settings(defaults=defaults, **typed_options(ctx))
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(levelname)s: %(name)s: %(message)s",
        handlers=[NoteHandler()],
    )
    for name, close in unknown_variables().items():
        hint = f"; did you mean {close}?" if close else ""
        note(f"warning: {name} is not a setting of kinfolk{hint}")
    return settings


def discover(settings: Settings) -> Registry:
    """The installed plugins; prints a warning for a broken one."""
    registry = Registry.discover(settings, reserved_commands=BUILT_IN.keys())
    for problem in registry.problems():
        note(f"warning: {problem}")
    return registry


def model_path(name: str | None, registry: Registry) -> Path:
    """The model file ``name``, or the bundled model for ``None``."""
    return bundled_model(registry) if name is None else find_model(name)


def find_model(name: str) -> Path:
    """The path of a model file. Raises :class:`ModelFormatError`, with a suggestion, if there is no
    such file."""
    path = home_expanded(Path(name))
    if path.is_dir():
        raise ModelFormatError(f"is a folder, not a model file; {_folder_hint(path)}", path=path)
    if path.is_file():
        return path
    if path.exists():
        raise ModelFormatError("is neither a file nor a folder; name a GGUF file", path=path)
    siblings = [file.name for file in path.parent.glob("*.gguf")]
    close = difflib.get_close_matches(path.name, siblings, n=3, cutoff=0.5)
    # Also names that the given one is a prefix of: users omit the suffix or half of a long name.
    close += [other for other in siblings if other.startswith(path.name) and other not in close]
    if close:
        suggestion = " or ".join(str(path.parent / other) for other in close)
        raise ModelFormatError(f"no such file; did you mean {suggestion}?", path=path)
    if "://" in name or (path.suffix != ".gguf" and _MODEL_NAME.fullmatch(name)):
        raise ModelFormatError(
            "no such file. kinfolk reads GGUF files and downloads nothing: download the model's "
            "GGUF file, then name its path, as in -m path/to/model.gguf",
            path=name,
        )
    where = "" if path.parent.is_dir() else f"; there is no folder {path.parent}"
    raise ModelFormatError(f"no such file{where}", path=path)


def _folder_hint(folder: Path) -> str:
    """The model files in a folder, or the command that converts it."""
    names = sorted(file.name for file in folder.glob("*.gguf"))
    if names:
        return f"it holds {', '.join(names[:5])}" + (" and others" if len(names) > 5 else "")
    if (folder / "config.json").is_file():
        return f"'kinfolk convert {folder} OUT.gguf' converts the model in it"
    return "it holds no .gguf file"


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements of a command on a model: a context of ``positions`` (needed by ``what``), and
    a chat template."""

    positions: int = 0
    what: str = ""
    chat_template: bool = False

    def check(self, file: GGUFFile, settings: Settings) -> None:
        """Raise :class:`SettingsError` if a model file does not meet the requirements."""
        from kinfolk.text.chat import TEMPLATE

        if self.chat_template and TEMPLATE not in file.metadata:
            raise SettingsError(
                f"{file.path}: the model has no chat template; name a chat model, or complete a "
                "text with 'kinfolk run --raw'"
            )
        needs = f"{self.what} needs {self.positions} positions"
        if settings.context is not None and settings.context < self.positions:
            raise SettingsError(f"{needs}, which is more than --context {settings.context}")
        key = f"{file.metadata.architecture}.context_length"
        if key in file.metadata and file.metadata.integer(key) < self.positions:
            raise SettingsError(
                f"{needs}; {file.path} has a context of {file.metadata.integer(key)}"
            )


def check_model(
    path: Path, settings: Settings, registry: Registry, need: Requirements | None = None
) -> None:
    """Check file, family, device and every name of a plugin's object, before the import of torch,
    which takes seconds. Raises the :class:`KinfolkError` that loading would raise."""
    from kinfolk.engine.devices import refuse_missing_device
    from kinfolk.engine.preparing_drafters import named_drafters
    from kinfolk.gguf.file import GGUFFile
    from kinfolk.ops.binding import Ops

    refuse_missing_device(settings.device)
    for name in settings.policy:
        registry.policy(name)
    named_drafters(settings, registry)
    Ops([provided.value for provided in registry.op_backends], settings.op)
    formats = registry.formats()
    with GGUFFile.open(path, formats.tensor_types()) as file:
        registry.family_for(file.metadata.architecture, settings.model_family)
        (need or Requirements()).check(file, settings)


def check_readers(settings: Settings, registry: Registry) -> None:
    """Check the files of the models that read beside the one that answers, if there are any."""
    compression, chunks = CompressionOptions.of(settings), chunk_drafter(settings)
    own = settings.model_copy(update={"model_family": None})
    for file in (None if compression is None else compression.drafter, chunks):
        if file is not None:
            check_model(find_model(str(file)), own, registry)


@contextmanager
def open_runtime(
    settings: Settings,
    model: str | None,
    need: Requirements | None = None,
    before: Callable[[Path], None] = lambda path: None,
    *,
    keep_profile: bool = True,
) -> Iterator[Runtime]:
    """The model with its engine, loaded with a progress bar; ``None`` = the bundled model.

    ``before`` gets the path when the file has been checked and before it is loaded.
    ``keep_profile``: ``--expert-profile`` is written, not only read.
    """
    registry = discover(settings)
    path = model_path(model, registry)
    check_model(path, settings, registry, need)
    check_readers(settings, registry)
    before(path)
    with loading(path) as progress:
        from kinfolk.engine.runtime import Runtime

        runtime = Runtime.open(path, settings, registry, progress, keep_profile=keep_profile)
    _announce_compilations(runtime.loaded)
    _announce_residency(runtime.loaded)
    _announce_experts(runtime.loaded)
    with runtime:
        yield runtime


@contextmanager
def open_model(
    settings: Settings, model: str | None, need: Requirements | None = None
) -> Iterator[LoadedModel]:
    """The model without an engine, for scoring; ``None`` = the bundled model."""
    registry = discover(settings)
    path = model_path(model, registry)
    check_model(path, settings, registry, need)
    with loading(path) as progress:
        from kinfolk.engine.loading import load_model

        scoring = settings.model_copy(update={"draft": ("off",)})
        loaded = load_model(path, scoring, registry, progress, keep_profile=False)
    _announce_compilations(loaded)
    with loaded.file:
        yield loaded


@contextmanager
def loading(path: Path) -> Iterator[ProgressBar]:
    """A progress bar shown at once, because the imports alone take seconds."""
    log.info("loading %s", path)
    with ProgressBar(f"loading {path.name}", at_once=True) as progress:
        yield progress


def warm_up(engine: Engine) -> None:
    """Capture likely steps with a progress bar, and say how long it took."""
    started, prepared = time.monotonic(), 0
    with ProgressBar("preparing steps") as progress:

        def count(done: int, total: int, what: str) -> None:
            nonlocal prepared
            prepared = done
            progress(done, total, what)

        engine.warm_up(count)
    if prepared:
        note(f"prepared {prepared} kinds of steps in {time.monotonic() - started:.1f} s")


def _announce_residency(loaded: LoadedModel) -> None:
    if loaded.residency is not None and loaded.source is not None:
        from kinfolk.engine.kvflash import describe

        note(describe(loaded.residency, loaded.source.ready.memory))


def _announce_experts(loaded: LoadedModel) -> None:
    if loaded.experts is not None and loaded.source is not None:
        note(loaded.source.ready.experts.describe())


def _announce_compilations(loaded: LoadedModel) -> None:
    if loaded.device.type == "cuda":
        from kinfolk_kernels.compiling import announce_compilations

        announce_compilations(note)
