"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import isfinite
from typing import Any, Final, Protocol, TypeVar, get_args

import click

from kinfolk.cli.text_input import text_argument
from kinfolk.engine.options import UNLIMITED, GenerationOptions
from kinfolk.errors import SettingsError
from kinfolk.sched.request import Sampling
from kinfolk.settings import Settings, choices_of, flag, variable

F = TypeVar("F", bound=Callable[..., Any])


class Decorator(Protocol):
    """Adds parameters to a command."""

    def __call__(self, command: F, /) -> F: ...


LOADING: Final = (
    *("model_family", "policy", "device", "memory"),
    *("dtype", "weights", "activations", "op"),
    *("expert_budget", "expert_swap", "expert_host", "expert_profile"),
)
ENGINE: Final = (
    *("context", "slots", "max_queue", "kv_codec", "v_codec", "step_tokens", "mixed_slice"),
    *("draft", "draft_model", "draft_mode", "draft_tokens", "draft_budget"),
    *("draft_widths", "draft_width", "draft_option"),
    *("graphs", "batch_invariant", "no_overlap"),
    *("kvflash", "kvflash_most", "kvflash_tau", "kvflash_burst", "kvflash_host"),
    *("kvflash_policy", "kvflash_layers", "kvflash_drafter"),
)
COMPRESSION: Final = (
    *("prefill_compression", "prefill_compression_threshold", "prefill_compression_keep_ratio"),
    *("prefill_compression_curve", "prefill_compression_drafter"),
)
"""The compression of prompts."""

PREFIXES: Final = ("checkpoints", "cache_memory", "cache_disk", "cache_dir")
"""What is kept of prompts, and where."""

_REPEATED: Final = frozenset({"op", "draft_option"})
_METAVARS: Final = {
    "expert_budget": "auto|all|GIB|N%",
    "kvflash": "N|auto|off",
    "draft": "auto|off|NAME[,NAME]",
    "draft_option": "NAME=VALUE",
    "op": "NAME=OPTION",
    "prefill_compression_curve": "TOKENS:RATIO ...",
}
_SHORT: Final = {"context": "-c"}


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN and infinity."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def setting(field: str, *aliases: str) -> Decorator:
    """The flag of a settings field. No default, so that the environment variable applies."""
    info = Settings.model_fields[field]
    integer = int in (info.annotation, *get_args(info.annotation))
    if info.annotation is bool:
        return click.option(
            flag(field),
            field,
            is_flag=True,
            default=None,
            help=f"{_sentence(info.description or field)} [{variable(field)}]",
        )
    return click.option(
        *filter(None, (_SHORT.get(field), flag(field), *aliases)),
        field,
        type=int if integer and field not in _METAVARS else str,
        multiple=field in _REPEATED,
        metavar=_METAVARS.get(field) or "|".join(choices_of(field)) or None,
        help=f"{_sentence(info.description or field)} [{variable(field)}]",
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def settings_options(*fields: str) -> Decorator:
    def decorate(command: F) -> F:
        for field in reversed(fields):
            command = setting(field)(command)
        return command

    return decorate


def model_option(command: F) -> F:
    """``-m FILE``, for commands whose arguments are not the model."""
    return click.option(
        "-m",
        "--model",
        metavar="FILE",
        help="Model file (GGUF); of a split model, the first part. Default: the bundled model.",
    )(command)


def model_argument(command: F) -> F:
    """FILE or ``-m FILE``, at most one of them; both set the parameter ``model``."""

    @click.argument("file", required=False)
    @model_option
    @functools.wraps(command)
    def with_model(*args: Any, file: str | None, model: str | None, **params: Any) -> Any:
        return command(*args, model=one_model(file, model), **params)

    return with_model  # type: ignore[return-value]


def one_model(file: str | None, model: str | None) -> str | None:
    """``file`` or ``model``, whichever is set. Raises :class:`click.UsageError` for both."""
    if file is not None and model is not None:
        raise click.UsageError(f"two models are named, {file} and, with -m, {model}; name one")
    return model if file is None else file


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")(command)


def sampling_value(field: str, **attributes: Any) -> Decorator:
    """The flag of a field of :class:`Sampling`, checked while the command line is parsed."""
    kind = type(getattr(Sampling(), field))
    return click.option(flag(field), field, type=kind, callback=_check_sampling, **attributes)


def _check_sampling(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if value is None:
        return None
    try:
        Sampling(**{str(param.name): value})
    except SettingsError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return value


def _token_count(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """A count of at least 1, or -1 for as many as fit."""
    if value is not None and value < 1 and value != -1:
        raise click.BadParameter(f"{value} must be 1 or more, or -1 for as many as fit")
    return UNLIMITED if value == -1 else value


SEED: Final = click.IntRange(0, 2**64 - 1)

_SAMPLING: Final = (
    click.option(
        "-n",
        "--max-tokens",
        type=int,
        callback=_token_count,
        help="Most tokens to generate, -1 = until the context is full. Default: that of the "
        "model's card, else as many as fit.",
    ),
    sampling_value("temperature", help="0 = greedy: always the most likely token."),
    sampling_value("top_k", help="Sample from the K most likely tokens, 0 = all."),
    sampling_value("top_p", help="Sample from the most likely tokens of this total probability."),
    sampling_value("min_p", help="Drop tokens below this fraction of the highest probability."),
    sampling_value("repetition_penalty", help="Above 1: repeated tokens are less likely."),
    sampling_value("presence_penalty", help="Subtracted from the logits of generated tokens."),
    sampling_value("frequency_penalty", help="Subtracted once for each occurrence."),
    click.option("--seed", type=SEED, help="Same seed, same answer."),
    click.option(
        "--stop",
        callback=text_argument,
        multiple=True,
        metavar="TEXT",
        help="Stop before this text. May be repeated.",
    ),
    click.option("--ignore-eos", is_flag=True, help="Do not stop at end-of-text tokens."),
)


def sampling_options(command: F) -> F:
    """The flags of :class:`GenerationOptions`; the model's card supplies the defaults."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def generation_options(params: dict[str, Any]) -> GenerationOptions:
    """The :class:`GenerationOptions` in a command's parameters."""
    return GenerationOptions(
        max_tokens=params["max_tokens"],
        temperature=params["temperature"],
        top_k=params["top_k"],
        top_p=params["top_p"],
        min_p=params["min_p"],
        repetition_penalty=params["repetition_penalty"],
        presence_penalty=params["presence_penalty"],
        frequency_penalty=params["frequency_penalty"],
        seed=params["seed"],
        stop=tuple(text for text in params["stop"] if text),
        ignore_eos=params["ignore_eos"],
    )
