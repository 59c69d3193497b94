"""Settings: the only reader of the environment.

Every field is an environment variable with the prefix ``KINFOLK_`` and, where the command line has
it, a flag of the same name (``step_tokens`` = ``KINFOLK_STEP_TOKENS`` = ``--step-tokens``). A flag
wins over the variable. Objects are frozen; nothing else in the project looks at ``os.environ``.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from kinfolk.errors import SettingsError

if TYPE_CHECKING:
    import click

PREFIX = "KINFOLK_"


def _split(value: object) -> object:
    """``"a, b"`` -> ``("a", "b")``; the empty string is the empty tuple."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return ()
    return tuple(part.strip() for part in value.split(","))


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if "" in names:
        raise ValueError("has an empty name; write names separated by single commas")
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"names {name!r} twice")
    return names


def _pairs(value: object) -> object:
    """``"rope=torch,rms_norm=reference"`` or a sequence of ``NAME=OPTION`` -> a mapping."""
    parts = _split(value)
    if not isinstance(parts, tuple | list):
        return value
    pairs: dict[str, str] = {}
    for part in parts:
        name, equals, option = str(part).partition("=")
        if not (name.strip() and equals and option.strip()):
            raise ValueError(f"{part!r} is not of the form NAME=OPTION")
        if name.strip() in pairs:
            raise ValueError(f"names {name.strip()!r} twice")
        pairs[name.strip()] = option.strip()
    return pairs


def _blank_is_unset(value: object) -> object:
    return None if isinstance(value, str) and not value.strip() else value


def _device(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError("must be auto, cpu, cuda, or cuda:N for the GPU of number N")
    return value


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "kinfolk"


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_distinct)]
OptionalNames = Annotated[
    tuple[str, ...] | None,
    NoDecode,
    BeforeValidator(_split),
    AfterValidator(lambda names: None if names is None else _distinct(names)),
]
Overrides = Annotated[
    Mapping[str, str],
    NoDecode,
    BeforeValidator(_pairs),
    AfterValidator(lambda pairs: MappingProxyType(dict(pairs))),
]
OptionalText = Annotated[str | None, BeforeValidator(_blank_is_unset)]


class Settings(BaseSettings):
    """What the user asked for. Build it with :func:`load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=False
    )

    # -- plugins
    plugins: OptionalNames = Field(
        None, description="plugins to load: unset = all installed, empty = none, or exact names"
    )
    strict_plugins: bool = Field(False, description="a broken plugin is an error")
    trace_plugins: bool = Field(False, description="log every call of a hook and who answered")
    model_family: OptionalText = Field(
        None, description="family to use where several claim the file's architecture, or none does"
    )
    policy: Names = Field((), description="policies asked before the family, in this order")

    # -- process
    cache_dir: Path = Field(
        default_factory=_default_cache_dir, description="where derived files are kept"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="least severity of log lines that are shown"
    )
    device: Annotated[str, BeforeValidator(_device)] = Field(
        "auto", description="auto, cpu, cuda or cuda:N"
    )
    dtype: Literal["auto", "f32", "f16", "bf16"] = Field(
        "auto", description="numbers in which the model computes"
    )
    memory: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="GiB of the device to use at most; unset = what is free",
    )
    weights: Literal["auto", "packed", "blocks", "dense"] = Field(
        "auto",
        description="quantised matrices in memory: planes = repacked for kernels, blocks = as in "
        "the file, numbers = dequantised; auto = planes on a GPU, else numbers if they fit",
    )
    activations: Literal["int8", "f16"] = Field(
        "int8",
        description="what up to 16 rows are rounded to before they meet a matrix in planes: "
        "int8 = fastest, f16 = nearer to the numbers",
    )
    op: Overrides = Field(
        default_factory=lambda: MappingProxyType({}),
        description="back end of an op, NAME=OPTION",
    )

    # -- engine
    slots: int = Field(8, ge=1, le=1024, description="sequences that can be in flight at once")
    context: int | None = Field(
        None, ge=1, description="positions a sequence may have; unset = what the model states"
    )
    step_tokens: int | None = Field(
        None, ge=1, description="rows in one step over all sequences; unset = by device"
    )
    quantum: int = Field(
        16, ge=1, description="tokens a sequence may emit before others that wait get its place"
    )
    checkpoints: int = Field(
        8, ge=0, description="states kept for prompts that begin alike, over all sequences"
    )
    kv_codec: Literal["f32", "f16", "bf16", "q8_0", "q4_0"] | None = Field(
        None,
        description="storage of keys and values: numbers, or 8 or 4 bits with a scale for 32; "
        "unset = the numbers the model computes in",
    )
    v_codec: Literal["f32", "f16", "bf16", "q8_0", "q4_0"] | None = Field(
        None, description="storage of values where it is to differ from that of keys"
    )
    graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="decode in steps of a few fixed sizes, recorded as CUDA graphs; auto = on a "
        "GPU. On a CPU the same steps are not recorded, and only cost their padding",
    )
    batch_invariant: bool = Field(
        False,
        description="a sequence's numbers do not depend on others beside it or before it: every "
        "decoding step is as large as --slots asks for, and on a CPU each sequence has its own; "
        "prompts are read one by one and from their start, nothing is drafted",
    )
    no_overlap: bool = Field(
        False,
        description="start no step before the one before it has been read; otherwise one starts "
        "where every sequence goes on by one token, and nothing but time is changed by it",
    )
    drafter: OptionalText = Field(None, description="drafter for speculative decoding")
    draft_tokens: int = Field(8, ge=1, le=63, description="most tokens drafted for a sequence")

    _defaults: frozenset[str] = PrivateAttr(default=frozenset())

    def asked(self, field: str) -> bool:
        """Whether somebody set a field, and not the command for want of a wish."""
        return field in self.model_fields_set and field not in self._defaults


def load_settings(*, defaults: Mapping[str, Any] | None = None, **options: Any) -> Settings:
    """Settings from the environment and ``options``, which win; an option ``None`` is not set.

    ``defaults`` hold where neither says anything. Raises :class:`SettingsError` naming the flag or
    variable at fault.
    """
    given = {name: value for name, value in options.items() if value is not None}
    try:
        settings = Settings(**given)
        rest = {
            name: value
            for name, value in (defaults or {}).items()
            if name not in settings.model_fields_set
        }
        if rest:
            settings = Settings(**given, **rest)
            settings._defaults = frozenset(rest)
    except ValidationError as error:
        raise SettingsError(_explain(error, given)) from error
    return settings


def options_given(context: click.Context) -> dict[str, Any]:
    """The settings that the user really typed, before the command or behind it.

    Parameters left at their default are absent, so that a default of the command line cannot hide
    an environment variable.
    """
    given = {} if context.parent is None else options_given(context.parent)
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in Settings.model_fields and source is not None and source.name == "COMMANDLINE":
            given[name] = value
    return given


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def variable(field: str) -> str:
    return PREFIX + field.upper()


def unknown_variables() -> dict[str, str]:
    """Variables with our prefix that mean nothing, each with the closest one that does, or ""."""
    known = [field.upper() for field in Settings.model_fields]
    found: dict[str, str] = {}
    for name in sorted(os.environ):
        rest = name.upper().removeprefix(PREFIX)
        if name.upper().startswith(PREFIX) and rest not in known:
            close = difflib.get_close_matches(rest, known, n=1)
            found[name] = variable(close[0]) if close else ""
    return found


def words_of(field: str) -> tuple[str, ...]:
    """The words that a field is limited to; none if it is not."""
    annotation = Settings.model_fields[field].annotation
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is Literal:
            return get_args(kind)
    return ()


def _explain(error: ValidationError, given: Mapping[str, object]) -> str:
    """One line for all the problems: where, what, and the value."""
    lines = []
    for problem in error.errors():
        field = str(problem["loc"][0]) if problem["loc"] else ""
        where = flag(field) if field in given else variable(field)
        if problem["type"] == "extra_forbidden":
            lines.append(f"{field!r} is no setting of kinfolk")
            continue
        own = problem["type"] == "value_error"
        rule = problem["msg"].removeprefix("Value error, ") if own else _rule(field)
        lines.append(f"{where}: {rule} (got {_shown(problem['input'])}){_meant(field, problem)}")
    return "; ".join(lines)


def _rule(field: str) -> str:
    """What a value of a field must be."""
    if words := words_of(field):
        return f"must be {', '.join(words[:-1])} or {words[-1]}"
    info = Settings.model_fields[field]
    kinds = {info.annotation, *get_args(info.annotation)}
    if bool in kinds:
        return "must be yes or no, true or false, 1 or 0"
    limits = {
        name: getattr(part, name)
        for part in info.metadata
        for name in ("ge", "gt", "le")
        if getattr(part, name, None) is not None
    }
    bounds = {"ge": "at least {}", "gt": "above {}", "le": "at most {}"}
    rule = " and ".join(bounds[name].format(limit) for name, limit in limits.items())
    what = "a whole number" if int in kinds else "a number" if float in kinds else "a path"
    return f"must be {what}" + (f", {rule}" if rule else "")


def _shown(value: object) -> str:
    """A value as it was typed; that of a flag that may be repeated is a tuple."""
    return repr(",".join(map(str, value))) if isinstance(value, tuple) else repr(value)


def _meant(field: str, problem: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(str(problem["input"]).lower(), words_of(field), n=1)
    return f"; did you mean {close[0]}?" if close else ""
