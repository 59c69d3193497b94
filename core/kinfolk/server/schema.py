"""The bodies of requests: what is understood, what is refused, what is passed over.

A field nobody here knows is ignored, as clients send many. A field that would change the answer
and is not implemented is refused by name, so that nobody mistakes the answer for what was asked.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from kinfolk.engine.options import GenerationOptions
from kinfolk.server.errors import invalid, unsupported
from kinfolk.server.tools import check_tool_choice, check_tools

MAX_STOPS: Final = 16
MAX_STOP_LENGTH: Final = 256
SEED_MASK: Final = 2**63 - 1


def _stops(value: object) -> object:
    """One text or several; empty ones say nothing."""
    if value is None or value is False:
        return ()
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        return tuple(text for text in value if text != "")
    return value


def _biases(value: object) -> object:
    """``{"id": bias}`` or ``[[id, bias], ...]``; ``false`` forbids a token."""
    if value is None:
        return {}
    pairs: Any = value.items() if isinstance(value, dict) else value
    try:
        return {int(token): -math.inf if bias is False else float(bias) for token, bias in pairs}
    except (TypeError, ValueError):
        raise ValueError("must map token ids to numbers between -100 and 100 or false") from None


Stops = Annotated[
    tuple[Annotated[str, Field(max_length=MAX_STOP_LENGTH)], ...],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_stops),
]
Bias = Annotated[float, Field(le=100)]


class StreamOptions(BaseModel):
    include_usage: bool = False


class GenerationBody(BaseModel):
    """What both ways of asking have in common."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n_predict: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[int, Bias], BeforeValidator(_biases)] = Field(default_factory=dict)
    seed: int | None = None
    stop: Stops = ()
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    n: int | None = Field(None, ge=1)
    priority: int | None = None

    # Would change the answer, and are not done here.
    grammar: Any = None
    json_schema: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_grammar: Any = None
    guided_choice: Any = None
    response_format: Any = None
    min_tokens: int | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _options_of_streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    def refuse_unsupported(self) -> None:
        """Raise :class:`ApiError` naming the first field that asks for what is not done here."""
        for name in ("grammar", "json_schema", "guided_json", "guided_regex", "guided_grammar"):
            if getattr(self, name):
                raise unsupported(f"{name}: constrained output is not supported", name)
        if self.guided_choice:
            raise unsupported("guided_choice: constrained output is not supported", "guided_choice")
        if self.min_tokens:
            raise unsupported("min_tokens is not supported", "min_tokens")
        _refuse_format(self.response_format)

    def wanted_tokens(self) -> int | None:
        for value in (self.max_tokens, self.n_predict):
            if value is not None and value != -1:
                return value
        return None

    def wanted_logprobs(self) -> int | None:
        raise NotImplementedError

    def options(self, max_choices: int) -> GenerationOptions:
        """The body's sampling fields. Raises :class:`ApiError`; ranges are checked later."""
        choices = self.n or 1
        if choices > max_choices:
            raise invalid(f"n: at most {max_choices} choices, asked for {choices}", "n")
        wanted = self.wanted_tokens()
        if wanted is not None and wanted < 1:
            raise invalid(f"max_tokens must be at least 1, got {wanted}", "max_tokens")
        seeded = self.seed is not None and self.seed != -1
        return GenerationOptions(
            max_tokens=wanted,
            temperature=self.temperature,
            top_k=None if self.top_k is None else max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=_first(self.repetition_penalty, self.repeat_penalty),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            seed=self.seed & SEED_MASK if seeded and self.seed is not None else None,
            stop=self.stop,
            stop_tokens=frozenset(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            choices=choices,
            logprobs=self.wanted_logprobs(),
            priority=self.priority or 0,
        )


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    modalities: list[Any] | None = None
    audio: Any = None

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        check_tool_choice(self.tool_choice)
        check_tools(self.callable_tools())
        if self.functions:
            raise unsupported("functions are not supported", "functions")
        if self.audio or any(kind != "text" for kind in self.modalities or ()):
            raise unsupported("only text can be generated", "modalities")
        if self.continue_final_message or self.add_generation_prompt is False:
            raise unsupported(
                "continuing a message is not supported; use /v1/completions with the whole text",
                "continue_final_message",
            )
        for index, message in enumerate(self.messages):
            _check_parts(message, f"messages.{index}.content")

    def wanted_tokens(self) -> int | None:
        if self.max_completion_tokens is not None and self.max_completion_tokens != -1:
            return self.max_completion_tokens
        return super().wanted_tokens()

    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def callable_tools(self) -> list[Any]:
        """The functions that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    def template_options(self) -> dict[str, Any]:
        """Variables for the chat template. Effort "none" switches reasoning off."""
        options = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            options.setdefault("enable_thinking", self.reasoning_effort != "none")
        return options


Prompt = str | list[int] | list[str] | list[list[int]]


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = None
    suffix: str | None = None

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.suffix:
            raise unsupported("suffix: filling in the middle is not supported", "suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported("best_of must equal n: choices are not ranked", "best_of")
        if self.echo and self.logprobs is not None:
            raise unsupported("logprobs of an echoed prompt are not supported", "logprobs")

    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one, at least one and none of them an empty list of ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise invalid("prompt: an empty list", "prompt")
        if isinstance(self.prompt[0], int):
            return [[int(token) for token in self.prompt]]
        return list(self.prompt)


def _check_parts(message: dict[str, Any], where: str) -> None:
    """Refuse parts that are no text. What else can be wrong is found when it is rendered."""
    content = message.get("content")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise unsupported(
                f"{where}.{number}: parts of type {kind!r} are not supported, only text",
                f"{where}.{number}",
            )


def _refuse_format(value: Any) -> None:
    if value is None:
        return
    kind = value.get("type") if isinstance(value, dict) else value
    if kind == "text":
        return
    if kind in ("json_object", "json_schema"):
        raise unsupported(f"response_format: {kind} is not supported, only text", "response_format")
    raise invalid(f"response_format: unknown type {kind!r}", "response_format")


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
