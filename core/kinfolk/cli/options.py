"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeVar, get_args, get_origin

import click

from kinfolk.cli.text_input import text_argument
from kinfolk.engine.options import GenerationOptions
from kinfolk.settings import Settings, flag, variable

F = TypeVar("F", bound=Callable[..., Any])


class Decorator(Protocol):
    """Adds parameters to a command."""

    def __call__(self, command: F, /) -> F: ...


LOADING: Final = (
    *("model_family", "policy", "device", "memory"),
    *("dtype", "weights", "activations", "op"),
)
ENGINE: Final = (
    *("context", "slots", "kv_codec", "v_codec", "drafter", "draft_tokens", "step_tokens"),
    *("graphs", "batch_invariant", "in_turn"),
)
_REPEATED: Final = frozenset({"op"})


def setting(field: str) -> Decorator:
    """The flag of a field of the settings. It has no default, so that the environment counts."""
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
        flag(field),
        field,
        type=int if integer else str,
        multiple=field in _REPEATED,
        metavar=_choices(info.annotation),
        help=f"{_sentence(info.description or field)} [{variable(field)}]",
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _choices(annotation: Any) -> str | None:
    """``a|b`` for a field that takes only certain words."""
    literals = [kind for kind in (annotation, *get_args(annotation)) if get_origin(kind) is Literal]
    return "|".join(get_args(literals[0])) if literals else None


def settings_options(*fields: str) -> Decorator:
    def decorate(command: F) -> F:
        for field in reversed(fields):
            command = setting(field)(command)
        return command

    return decorate


def model_option(command: F) -> F:
    return click.option(
        "-m",
        "--model",
        metavar="FILE",
        help="Model file (GGUF); of a split model, the first part. Default: the bundled model.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")(command)


_SAMPLING: Final = (
    click.option(
        "-n",
        "--max-tokens",
        type=click.IntRange(min=1),
        help="Tokens to generate at most. Default: what the model's card says, else what fits.",
    ),
    click.option("--temperature", type=float, help="0 = always the likeliest token."),
    click.option("--top-k", type=int, help="Sample from the K likeliest tokens, 0 = all."),
    click.option("--top-p", type=float, help="Sample from the likeliest tokens of this mass."),
    click.option(
        "--min-p", type=float, help="Leave out tokens less likely than this part of the likeliest."
    ),
    click.option(
        "--repetition-penalty", type=float, help="Above 1: tokens that occurred are less likely."
    ),
    click.option(
        "--presence-penalty", type=float, help="Taken from the logit of tokens written before."
    ),
    click.option(
        "--frequency-penalty", type=float, help="The same for each time they were written."
    ),
    click.option("--seed", type=click.IntRange(min=0), help="Same seed, same answer."),
    click.option(
        "--stop",
        callback=text_argument,
        multiple=True,
        metavar="TEXT",
        help="End before this text. May be repeated.",
    ),
    click.option("--ignore-eos", is_flag=True, help="Go on past the model's own end of text."),
)


def sampling_options(command: F) -> F:
    """Options of :class:`GenerationOptions`; what is not given is left to the model's card."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def generation_options(params: dict[str, Any]) -> GenerationOptions:
    """The generation options among a command's parameters."""
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
