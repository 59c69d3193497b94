"""The bodies of requests: what is understood, what is refused, what is passed over.

A field nobody here knows is ignored, as clients send many. A field that would change the answer
and is not implemented is refused by name, so that nobody mistakes the answer for what was asked.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kinfolk.engine.options import GenerationOptions
from kinfolk.errors import shown
from kinfolk.sched.rules import LARGEST_TOP_K
from kinfolk.server.errors import invalid, unsupported
from kinfolk.server.fields import (
    BIAS,
    COUNT,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    Biases,
    Count,
    Number,
    Prompts,
    Stops,
    Whole,
    ruled,
    within,
)
from kinfolk.server.tools import check_tool_choice, check_tools
from kinfolk.text.chat import reserved_variables
from kinfolk.text.messages import REASONING

SEED_MASK: Final = 2**63 - 1
UNSUPPORTED: Final = "left out: constrained output is not supported"


class StreamOptions(BaseModel):
    include_usage: bool | None = False


class GenerationBody(BaseModel):
    """What both ways of asking have in common. A field's description says what it must be: that is
    what a client hears whose value is something else."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str | None = Field(None, description="a text")
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(
        None, description="an object in which include_usage is true or false"
    )
    max_tokens: Count = Field(None, description=COUNT)
    n_predict: Count = Field(None, description=COUNT)
    temperature: Annotated[Number | None, within("temperature")] = ruled("temperature")
    top_p: Annotated[Number | None, within("top_p")] = ruled("top_p")
    top_k: Whole | None = Field(None, description="an integer; 0 or less takes all tokens")
    min_p: Annotated[Number | None, within("min_p")] = ruled("min_p")
    repetition_penalty: Annotated[Number | None, within("repetition_penalty")] = ruled(
        "repetition_penalty"
    )
    repeat_penalty: Annotated[Number | None, within("repetition_penalty")] = ruled(
        "repetition_penalty"
    )
    presence_penalty: Annotated[Number | None, within("presence_penalty")] = ruled(
        "presence_penalty"
    )
    frequency_penalty: Annotated[Number | None, within("frequency_penalty")] = ruled(
        "frequency_penalty"
    )
    logit_bias: Biases = Field(
        default_factory=dict, description=f"an object of token ids, each with {BIAS}"
    )
    seed: Whole | None = Field(None, description="an integer; -1 is a random one")
    stop: Stops = Field(
        (),
        description=f"a text or a list of at most {MAX_STOPS} texts, "
        f"none longer than {MAX_STOP_LENGTH} characters",
    )
    stop_token_ids: tuple[Whole, ...] | None = Field(None, description="a list of token ids")
    ignore_eos: bool | None = Field(None, description="true or false")
    n: Annotated[Whole | None, Field(ge=1)] = Field(None, description="an integer of at least 1")
    priority: Whole | None = Field(None, description="an integer; lower ones run first")

    # Would change the answer, and are not done here.
    grammar: Any = Field(None, description=UNSUPPORTED)
    json_schema: Any = Field(None, description=UNSUPPORTED)
    guided_json: Any = Field(None, description=UNSUPPORTED)
    guided_regex: Any = Field(None, description=UNSUPPORTED)
    guided_grammar: Any = Field(None, description=UNSUPPORTED)
    guided_choice: Any = Field(None, description=UNSUPPORTED)
    response_format: Any = Field(None, description='an object whose type is "text"')
    min_tokens: Whole | None = Field(None, description="0: a least length is not supported")

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

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
        """The body's sampling fields. Raises :class:`ApiError`."""
        choices = self.n or 1
        if choices > max_choices:
            raise invalid(
                f"n must be an integer between 1 and {max_choices}, got {shown(choices)}", "n"
            )
        seeded = self.seed is not None and self.seed != -1
        return GenerationOptions(
            max_tokens=self.wanted_tokens(),
            temperature=self.temperature,
            top_k=None if self.top_k is None else min(max(self.top_k, 0), LARGEST_TOP_K),
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

    messages: list[dict[str, Any]] = Field(
        min_length=1, description="a list of at least one object with a role and a content"
    )
    max_completion_tokens: Count = Field(None, description=COUNT)
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: Annotated[Whole | None, within("logprobs")] = ruled("logprobs")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="an object of variables for the chat template"
    )
    reasoning_effort: str | None = Field(None, description="a text")
    add_generation_prompt: bool | None = Field(None, description="true or false")
    continue_final_message: bool | None = Field(None, description="true or false")

    tools: list[Any] | None = Field(None, description="a list of functions")
    tool_choice: Any = Field(None, description='"auto" or "none"')
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    functions: list[Any] | None = Field(None, description="left out: use tools")
    modalities: list[Any] | None = Field(None, description='["text"]')
    audio: Any = Field(None, description="left out: only text can be generated")

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
        if self.audio:
            raise unsupported("audio: only text can be generated", "audio")
        if any(kind != "text" for kind in self.modalities or ()):
            raise unsupported(
                f"modalities: only text can be generated, got {shown(self.modalities)}",
                "modalities",
            )
        for name, wanted in (
            ("continue_final_message", self.continue_final_message),
            ("add_generation_prompt", self.add_generation_prompt is False),
        ):
            if wanted:
                raise unsupported(
                    f"{name}: continuing a message is not supported; use /v1/completions with the "
                    "whole text",
                    name,
                )
        for index, message in enumerate(self.messages):
            for name in ("content", *REASONING):
                _check_parts(message.get(name), f"messages.{index}.{name}")

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
        """Variables for the chat template. Effort "none" switches reasoning off. Raises
        :class:`ApiError` for one that is not the client's to give."""
        options = dict(self.chat_template_kwargs or {})
        for name in options.keys() & reserved_variables():
            raise invalid(
                f"chat_template_kwargs: {shown(name)} is kinfolk's to give, not the client's",
                f"chat_template_kwargs.{name}",
            )
        if self.reasoning_effort is not None:
            options.setdefault("enable_thinking", self.reasoning_effort != "none")
        return options


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    prompt: Prompts = Field(
        description="a text, a list of texts, a list of token ids or a list of such lists"
    )
    echo: bool | None = Field(None, description="true or false")
    logprobs: Annotated[Whole | None, within("logprobs")] = ruled("logprobs")
    best_of: Whole | None = Field(None, description="an integer, the same as n")
    suffix: str | None = Field(None, description="left out: nothing can be filled in")

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
        """The prompts one by one, at least one."""
        return self.prompt


def _check_parts(content: Any, where: str) -> None:
    """Refuse parts that are no text. What else can be wrong is found when it is rendered."""
    for number, part in enumerate(content if isinstance(content, list) else ()):
        place = f"{where}.{number}"
        if not isinstance(part, str | dict):
            raise invalid(f"{place} must be an object with a type, got {shown(part)}", place)
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise unsupported(
                f"{place}: parts of type {shown(kind)} are not supported, only text", place
            )


def _refuse_format(value: Any) -> None:
    if value is None:
        return
    kind = value.get("type") if isinstance(value, dict) else value
    if kind == "text":
        return
    if kind in ("json_object", "json_schema"):
        raise unsupported(f"response_format: {kind} is not supported, only text", "response_format")
    raise invalid(f"response_format: the type must be text, got {shown(kind)}", "response_format")


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
