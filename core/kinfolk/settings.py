"""Settings: the only module that reads the environment.

Every field is an environment variable with the prefix ``KINFOLK_`` and, on commands that have it, a
flag of the same name (``step_tokens`` = ``KINFOLK_STEP_TOKENS`` = ``--step-tokens``). A flag wins
over the variable. :class:`Settings` is frozen.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from kinfolk.errors import SettingsError
from kinfolk.setting_values import (
    MOST_GIB,
    blank_is_unset,
    budget_of_experts,
    device_name,
    distinct,
    home_expanded,
    not_blank,
    one_word_alone,
    overrides,
    split_names,
    tokens_or_word,
)

if TYPE_CHECKING:
    import click

PREFIX = "KINFOLK_"

ALIASES: Final = MappingProxyType(
    {
        "DFLASH_KVFLASH": "kvflash",
        "DFLASH_KVFLASH_TAU": "kvflash_tau",
        "DFLASH_KVFLASH_MAX_POOL": "kvflash_most",
        "DFLASH_KVFLASH_POLICY": "kvflash_policy",
        "DFLASH_KVFLASH_DRAFTER": "kvflash_drafter",
    }
)
"""Variables of another program for which this one may stand in, and the field that each sets where
neither a flag nor our own variable does."""


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return home_expanded(Path(base or "~/.cache")) / "kinfolk"


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_names), AfterValidator(distinct)]
OptionalNames = Annotated[
    tuple[str, ...] | None,
    NoDecode,
    BeforeValidator(split_names),
    AfterValidator(lambda names: None if names is None else distinct(names)),
]
Overrides = Annotated[
    Mapping[str, str],
    NoDecode,
    BeforeValidator(overrides),
    AfterValidator(lambda pairs: MappingProxyType(dict(pairs))),
]
Drafters = Annotated[
    tuple[str, ...],
    NoDecode,
    BeforeValidator(split_names),
    AfterValidator(distinct),
    AfterValidator(one_word_alone),
]
OwnPath = Annotated[Path, BeforeValidator(not_blank), AfterValidator(home_expanded)]
OptionalText = Annotated[str | None, BeforeValidator(blank_is_unset)]
OptionalPath = Annotated[OwnPath | None, BeforeValidator(blank_is_unset)]


class Settings(BaseSettings):
    """Options of the user, from flags and environment. Built by :func:`load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=False
    )

    # -- plugins
    plugins: OptionalNames = Field(
        None, description="plugins to load by exact name: unset = all installed, empty = none"
    )
    strict_plugins: bool = Field(False, description="fail if a plugin is broken")
    trace_plugins: bool = Field(
        False, description="log every hook call and the plugin that answered it, at level info"
    )
    model_family: OptionalText = Field(
        None, description="family to use if several claim the file's architecture, or none does"
    )
    policy: Names = Field(
        (), description="policies whose hooks are called before the family's, in this order"
    )

    # -- process
    cache_dir: OwnPath = Field(
        default_factory=_default_cache_dir, description="directory of derived files"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="lowest severity of log lines to print"
    )
    device: Annotated[str, BeforeValidator(device_name)] = Field(
        "auto", description="device of the model: auto, cpu, cuda or cuda:N"
    )
    dtype: Literal["auto", "f32", "f16", "bf16"] = Field(
        "auto", description="dtype of activations and dense weights"
    )
    memory: float | None = Field(
        None,
        gt=0,
        le=MOST_GIB,
        allow_inf_nan=False,
        description="most GiB of device memory to use; unset = all that is free",
    )
    weights: Literal["auto", "packed", "blocks", "dense"] = Field(
        "auto",
        description="quantised matrices in memory: packed = repacked for kernels, blocks = as in "
        "the file, dense = dequantised; auto = packed on a GPU, else dense if it fits",
    )
    activations: Literal["int8", "f16"] = Field(
        "int8",
        description="activations in products of few rows: up to 512 with packed experts, up to 16 "
        "with other packed matrices, on Hopper GPUs up to 32 if a row has more than 4096 numbers: "
        "int8 = fastest, f16 = more accurate",
    )
    expert_budget: Annotated[float | str, BeforeValidator(budget_of_experts)] = Field(
        "auto",
        description="experts of a mixture on the device: all, or bays of so many GiB or of N% of "
        "them, and the others in host memory; auto = all if they fit, else what the rest leaves",
    )
    expert_swap: Literal["on", "off"] = Field(
        "on",
        description="experts that a step chooses come to the device and stay until others need "
        "their place; off = those of the start stay (--expert-budget)",
    )
    expert_host: float | None = Field(
        None,
        gt=0,
        le=MOST_GIB,
        allow_inf_nan=False,
        description="most GiB of host memory for experts; unset = what is free when the model "
        "opens (--expert-budget)",
    )
    expert_profile: OptionalPath = Field(
        None,
        description="file that keeps how often each expert was used: the most used ones begin on "
        "the device; run, chat, serve and daemon add to it every ten minutes and at the end, other "
        "commands only read it",
    )
    op: Overrides = Field(
        default_factory=lambda: MappingProxyType({}),
        description="back end of an op, as NAME=OPTION",
    )

    # -- engine
    slots: int = Field(8, ge=1, le=1024, description="sequences that run at once")
    context: int | None = Field(
        None,
        ge=1,
        description="most positions of a sequence; unset = 32768, or the model's own limit if that "
        "is less; where memory is short, less",
    )
    step_tokens: int | None = Field(
        None, ge=1, description="most rows in a step, over all sequences; unset = by device"
    )
    mixed_slice: int | None = Field(
        None,
        ge=0,
        multiple_of=64,
        description="most rows of a prompt's slice while other sequences decode: with fewer, these "
        "wait less and the prompt is read in more steps; a multiple of 64; unset = by device and "
        "model; 0 = no limit",
    )
    max_queue: int = Field(
        64, ge=0, description="most requests that wait for a slot; further ones are refused"
    )
    quantum: int = Field(
        16,
        ge=1,
        description="tokens a sequence may emit before others that run have their turn, where a "
        "step has no room for all",
    )
    checkpoints: int = Field(
        8,
        ge=0,
        description="checkpoints on the device for prompts with a common prefix, over all "
        "sequences; unset = 2 on a GPU whose host keeps more of them (--cache-memory)",
    )
    cache_memory: float | None = Field(
        None,
        ge=0,
        le=MOST_GIB,
        allow_inf_nan=False,
        description="GiB of host memory for checkpoints that leave the device; unset = a quarter "
        "of what is free, at most 8; 0 = none",
    )
    checkpoint_every: int = Field(
        8192,
        ge=0,
        description="tokens of a long prompt between checkpoints, so that what was computed of one "
        "that is cancelled is of use; 0 = none",
    )
    cache_disk: float = Field(
        0.0,
        ge=0,
        le=MOST_GIB,
        allow_inf_nan=False,
        description="most GiB on the disk for prefixes of prompts, of all models together; 0 = "
        "none are kept there",
    )
    kvflash: Annotated[Literal["off", "auto"] | int, BeforeValidator(tokens_or_word)] = Field(
        "off",
        description="most tokens of a sequence's full attention on the device; the rest waits in "
        "host memory: a number, auto = what fits (--kvflash-most), off = all of them",
    )
    kvflash_most: int = Field(
        16384, ge=1, description="most tokens of a budget that --kvflash auto chooses"
    )
    kvflash_tau: int = Field(
        64, ge=1, description="tokens between two choices of what is on the device (--kvflash)"
    )
    kvflash_burst: int = Field(
        32,
        ge=1,
        description="chunks of 64 tokens that a choice exchanges at most; so many blocks of the "
        "budget are spare (--kvflash)",
    )
    kvflash_policy: Literal["qk", "lru", "drafter", "oracle"] = Field(
        "qk",
        description="who chooses what is on the device, unless a --policy scores chunks: qk = the "
        "attention of the last 8 rows to compressed keys of all chunks, lru = nobody: the first "
        "and the last chunks stay, and nothing comes back, drafter = the attention of a small "
        "model that reads along (--kvflash-drafter), oracle = exact keys in host memory: slow, for "
        "tests and measurements, and refused by servers",
    )
    kvflash_drafter: OptionalPath = Field(
        None,
        description="file of the small model of --kvflash-policy drafter; its keys and values of "
        "all positions of all slots are on the device",
    )
    kvflash_layers: int | None = Field(
        None,
        ge=1,
        description="layers whose attention chooses (--kvflash-policy qk): for each, 2 bits a "
        "number of the keys of a whole context are on the device; unset = as many as fit a quarter "
        "of the memory for --kvflash tokens, at least one",
    )
    kvflash_host: float | None = Field(
        None,
        gt=0,
        le=MOST_GIB,
        allow_inf_nan=False,
        description="GiB of host memory for chunks of sequences longer than --kvflash; unset = "
        "enough for all slots, at most half of what is free",
    )
    prefill_compression: Literal["off", "auto", "always"] = Field(
        "off",
        description="leave out the parts of a long prompt that its question seems not to be about: "
        "auto = from --prefill-compression-threshold on, always = of every prompt; the model never "
        "sees what is left out",
    )
    prefill_compression_threshold: int = Field(
        32000, ge=1, description="tokens of a prompt from which --prefill-compression auto is on"
    )
    prefill_compression_keep_ratio: float = Field(
        0.05, gt=0, le=1, description="part of a prompt that is kept (--prefill-compression)"
    )
    prefill_compression_curve: OptionalText = Field(
        None,
        description="ratios by the length of a prompt instead of --prefill-compression-keep-ratio: "
        'points TOKENS:RATIO with lines between them, as "10000:0.5 40000:0.2 100000:0.1"',
    )
    prefill_compression_drafter: OptionalPath = Field(
        None,
        description="file of a small model that reads prompts first, to find what their questions "
        "are about; requests may then ask for --prefill-compression themselves",
    )
    kv_codec: Literal["f32", "f16", "bf16", "q8_0", "q4_0"] | None = Field(
        None,
        description="storage of keys and values: a float dtype, or 8 or 4 bits with one scale per "
        "32 numbers; unset = the model's dtype",
    )
    v_codec: Literal["f32", "f16", "bf16", "q8_0", "q4_0"] | None = Field(
        None, description="storage of values; unset = that of keys"
    )
    graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="decode in steps of a few fixed sizes, captured as CUDA graphs; auto = on a "
        "GPU or with --batch-invariant. On a CPU the steps are padded but not captured, which "
        "only costs time",
    )
    batch_invariant: bool = Field(
        False,
        description="compute a sequence independently of the other sequences, bit for bit: every "
        "decoding step is padded to --slots, or on a CPU runs one sequence; prompts are read one "
        "by one, from their start; no drafts",
    )
    no_overlap: bool = Field(
        False,
        description="launch a step only when the result of the step before it was read; by default "
        "a step of one token for each sequence is launched earlier, which changes only the speed",
    )
    preempt: bool = Field(
        False,
        description="let a request of higher priority take the place of a running one, whose state "
        "moves to host memory (--cache-memory) until it goes on",
    )
    draft: Drafters = Field(
        ("auto",),
        description="drafters of speculative decoding, tried in this order; auto = "
        "that of --draft-model, a file NAME-draft.gguf or NAME.dflash.gguf beside NAME.gguf, or "
        "the model's own, and where the text repeats itself, ngram; off = none",
    )
    draft_model: OptionalPath = Field(
        None, description="file of a drafter with weights, which drafts for the model"
    )
    draft_mode: Literal["auto", "chain", "tree"] = Field(
        "auto",
        description="what a drafter with weights proposes: one chain of --draft-tokens, a tree "
        "of --draft-budget tokens with its best candidates, or whichever pays by --draft-widths",
    )
    draft_tokens: int | None = Field(
        None,
        ge=1,
        le=63,
        description="most tokens of a drafted chain; unset = as many as the drafter proposes, "
        "of ngram 15",
    )
    draft_budget: int = Field(
        32, ge=1, le=63, description="tokens of a drafted tree: a path has room for 63"
    )
    draft_widths: Literal["cost", "confidence", "fixed"] = Field(
        "cost",
        description="how much of a draft is verified: cost = what pays by measured times and "
        "acceptance, confidence = a chain while the drafter gives it a chance, which waits for "
        "each draft, fixed = all of it",
    )
    draft_width: int | None = Field(
        None,
        ge=1,
        le=63,
        description="verify this many tokens of each draft: a run is then repeatable",
    )
    draft_option: Overrides = Field(
        default_factory=lambda: MappingProxyType({}),
        description="option of a drafter with weights, as NAME=VALUE",
    )

    _defaults: frozenset[str] = PrivateAttr(default=frozenset())

    def asked(self, field: str) -> bool:
        """Whether the user set the field; false for a default of the command or of the field."""
        return field in self.model_fields_set and field not in self._defaults


def load_settings(*, defaults: Mapping[str, Any] | None = None, **options: Any) -> Settings:
    """Settings from ``options``, then the environment, then ``defaults``, in order of precedence.

    An option that is ``None`` counts as unset. Raises :class:`SettingsError` naming the flag or
    variable at fault.
    """
    flags = {name: value for name, value in options.items() if value is not None}
    aliases = _aliases(flags)
    given: dict[str, Any] = flags | {field: os.environ[name] for field, name in aliases.items()}
    try:
        settings = Settings(**given)
        unset = {
            name: value
            for name, value in (defaults or {}).items()
            if name not in settings.model_fields_set
        }
        if unset:
            settings = Settings(**given, **unset)
            settings._defaults = frozenset(unset)
    except ValidationError as error:
        raise SettingsError(_explain(error, flags, aliases)) from error
    return settings


def _aliases(flags: Mapping[str, object]) -> dict[str, str]:
    """Fields that only a variable of another program sets, with its name."""
    ours = {name.upper() for name in os.environ}
    return {
        field: name
        for name, field in ALIASES.items()
        if os.environ.get(name, "").strip() and field not in flags and variable(field) not in ours
    }


def typed_options(context: click.Context) -> dict[str, Any]:
    """The settings that the user typed, before or after the command's name.

    A parameter at its default is left out, so that it does not hide an environment variable.
    """
    typed = {} if context.parent is None else typed_options(context.parent)
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in Settings.model_fields and source is not None and source.name == "COMMANDLINE":
            typed[name] = value
    return typed


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def variable(field: str) -> str:
    return PREFIX + field.upper()


def unknown_variables() -> dict[str, str]:
    """Environment variables named ``KINFOLK_...`` that are no setting, each with the most similar
    variable that is one, or ""."""
    known = [field.upper() for field in Settings.model_fields]
    suggestions: dict[str, str] = {}
    for name in sorted(os.environ):
        rest = name.upper().removeprefix(PREFIX)
        if name.upper().startswith(PREFIX) and rest not in known:
            close = difflib.get_close_matches(rest, known, n=1)
            suggestions[name] = variable(close[0]) if close else ""
    return suggestions


def choices_of(field: str) -> tuple[str, ...]:
    """The values of a field of type ``Literal``; empty for any other type."""
    annotation = Settings.model_fields[field].annotation
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is Literal:
            return get_args(kind)
    return ()


def _explain(
    error: ValidationError, flags: Mapping[str, object], aliases: Mapping[str, str]
) -> str:
    """All problems in one line: the flag or variable, the rule, and the value."""
    lines = []
    for problem in error.errors():
        field = str(problem["loc"][0]) if problem["loc"] else ""
        where = flag(field) if field in flags else aliases.get(field, variable(field))
        if problem["type"] == "extra_forbidden":
            lines.append(f"{field!r} is not a setting of kinfolk")
            continue
        own = problem["type"] == "value_error"
        rule = problem["msg"].removeprefix("Value error, ") if own else _rule(field)
        lines.append(f"{where}: {rule} (got {_typed(problem['input'])}){_hint(field, problem)}")
    return "; ".join(lines)


def _rule(field: str) -> str:
    """What a value of the field must be, in words."""
    if words := choices_of(field):
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


def _typed(value: object) -> str:
    """A value as the user typed it; a flag that may be repeated has a tuple."""
    return repr(",".join(map(str, value))) if isinstance(value, tuple) else repr(value)


def _hint(field: str, problem: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(str(problem["input"]).lower(), choices_of(field), n=1)
    return f"; did you mean {close[0]}?" if close else ""
