"""Request bodies: fields, their validation, and fields that are refused.

Unknown fields are ignored, because clients send many. A known field that would change the answer
but is not implemented is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kinfolk.compress.rules import CompressionMode
from kinfolk.engine.options import GenerationOptions
from kinfolk.errors import shown
from kinfolk.sched.rules import LARGEST_TOP_K
from kinfolk.server.compression import PREFILL_COMPRESSION
from kinfolk.server.errors import invalid, unsupported
from kinfolk.server.fields import (
    BIAS,
    COUNT,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    Biases,
    Integer,
    Number,
    Prompts,
    Stops,
    TokenCount,
    sampling_field,
    sampling_range,
)
from kinfolk.server.speculative import SPECULATIVE, Speculative
from kinfolk.server.tools import check_tool_choice, check_tools
from kinfolk.text.chat import reserved_variables
from kinfolk.text.messages import REASONING

SEED_MASK: Final = 2**63 - 1
UNSUPPORTED: Final = "left out: constrained output is not supported"


class StreamOptions(BaseModel):
    include_usage: bool | None = False


class GenerationBody(BaseModel):
    """Fields of both endpoints. A field's description states its valid values: it is quoted in the
    error for an invalid one."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str | None = Field(None, max_length=256, description="a text of at most 256 characters")
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(
        None, description="an object in which include_usage is true or false"
    )
    max_tokens: TokenCount = Field(None, description=COUNT)
    n_predict: TokenCount = Field(None, description=COUNT)
    temperature: Annotated[Number | None, sampling_range("temperature")] = sampling_field(
        "temperature"
    )
    top_p: Annotated[Number | None, sampling_range("top_p")] = sampling_field("top_p")
    top_k: Integer | None = Field(None, description="an integer; 0 or less takes all tokens")
    min_p: Annotated[Number | None, sampling_range("min_p")] = sampling_field("min_p")
    repetition_penalty: Annotated[Number | None, sampling_range("repetition_penalty")] = (
        sampling_field("repetition_penalty")
    )
    repeat_penalty: Annotated[Number | None, sampling_range("repetition_penalty")] = sampling_field(
        "repetition_penalty"
    )
    presence_penalty: Annotated[Number | None, sampling_range("presence_penalty")] = sampling_field(
        "presence_penalty"
    )
    frequency_penalty: Annotated[Number | None, sampling_range("frequency_penalty")] = (
        sampling_field("frequency_penalty")
    )
    logit_bias: Biases = Field(
        default_factory=dict, description=f"an object of token ids, each with {BIAS}"
    )
    seed: Integer | None = Field(None, description="an integer; -1 is a random one")
    stop: Stops = Field(
        (),
        description=f"a text or a list of at most {MAX_STOPS} texts, "
        f"none longer than {MAX_STOP_LENGTH} characters",
    )
    stop_token_ids: tuple[Integer, ...] | None = Field(None, description="a list of token ids")
    ignore_eos: bool | None = Field(None, description="true or false")
    n: Annotated[Integer | None, Field(ge=1)] = Field(None, description="an integer of at least 1")
    priority: Integer | None = Field(None, description="an integer; lower ones run first")
    speculative: Speculative | None = Field(None, description=SPECULATIVE)
    prefill_compression: CompressionMode | None = Field(None, description=PREFILL_COMPRESSION)
    kvflash: Literal["auto", "off"] | None = Field(
        None, description='"off": no part of it may leave the device; or "auto"'
    )

    # Not implemented, and would change the answer.
    grammar: Any = Field(None, description=UNSUPPORTED)
    json_schema: Any = Field(None, description=UNSUPPORTED)
    guided_json: Any = Field(None, description=UNSUPPORTED)
    guided_regex: Any = Field(None, description=UNSUPPORTED)
    guided_grammar: Any = Field(None, description=UNSUPPORTED)
    guided_choice: Any = Field(None, description=UNSUPPORTED)
    response_format: Any = Field(None, description='an object whose type is "text"')
    min_tokens: Integer | None = Field(None, description="0: a least length is not supported")

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
        """Raise :class:`ApiError` naming the first field that needs an unsupported feature."""
        for name in ("grammar", "json_schema", "guided_json", "guided_regex", "guided_grammar"):
            if getattr(self, name):
                raise unsupported(f"{name}: constrained output is not supported", name)
        if self.guided_choice:
            raise unsupported("guided_choice: constrained output is not supported", "guided_choice")
        if self.min_tokens:
            raise unsupported("min_tokens is not supported", "min_tokens")
        _refuse_format(self.response_format)

    def token_limit(self) -> int | None:
        """Most tokens to generate, ``None`` = as many as fit."""
        for value in (self.max_tokens, self.n_predict):
            if value is not None and value != -1:
                return value
        return None

    def top_logprob_count(self) -> int | None:
        """Alternatives to report for each token, ``None`` = no logprobs."""
        raise NotImplementedError

    def options(self, max_choices: int) -> GenerationOptions:
        """The generation options of the body. Raises :class:`ApiError` for too many choices."""
        choices = self.n or 1
        if choices > max_choices:
            raise invalid(
                f"n must be an integer between 1 and {max_choices}, got {shown(choices)}", "n"
            )
        drafts = self.speculative or Speculative()
        seeded = self.seed is not None and self.seed != -1
        return GenerationOptions(
            max_tokens=self.token_limit(),
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
            logprobs=self.top_logprob_count(),
            draft=drafts.drafts,
            draft_width=drafts.width,
            draft_mode=drafts.mode or "auto",
            priority=self.priority or 0,
            paged=self.kvflash != "off",
        )


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(
        min_length=1, description="a list of at least one object with a role and a content"
    )
    max_completion_tokens: TokenCount = Field(None, description=COUNT)
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: Annotated[Integer | None, sampling_range("logprobs")] = sampling_field("logprobs")
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
        for name, is_set in (
            ("continue_final_message", self.continue_final_message),
            ("add_generation_prompt", self.add_generation_prompt is False),
        ):
            if is_set:
                raise unsupported(
                    f"{name}: continuing a message is not supported; use /v1/completions with the "
                    "whole text",
                    name,
                )
        for index, message in enumerate(self.messages):
            for name in ("content", *REASONING):
                _check_parts(message.get(name), f"messages.{index}.{name}")

    def token_limit(self) -> int | None:
        if self.max_completion_tokens is not None and self.max_completion_tokens != -1:
            return self.max_completion_tokens
        return super().token_limit()

    def top_logprob_count(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def callable_tools(self) -> list[Any]:
        """The tools that the answer may call: none for ``tool_choice`` "none"."""
        return [] if self.tool_choice == "none" else self.tools or []

    def template_options(self) -> dict[str, Any]:
        """Variables for the chat template; ``reasoning_effort`` "none" disables reasoning. Raises
        :class:`ApiError` for a reserved variable."""
        options = dict(self.chat_template_kwargs or {})
        for name in options.keys() & reserved_variables():
            raise invalid(
                f"chat_template_kwargs: {shown(name)} is reserved and cannot be set",
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
    logprobs: Annotated[Integer | None, sampling_range("logprobs")] = sampling_field("logprobs")
    best_of: Integer | None = Field(None, description="an integer, the same as n")
    suffix: str | None = Field(None, description="left out: filling in is not supported")

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.suffix:
            raise unsupported("suffix: filling in the middle is not supported", "suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported("best_of must equal n: choices are not ranked", "best_of")
        if self.echo and self.logprobs is not None:
            raise unsupported("logprobs of an echoed prompt are not supported", "logprobs")

    def top_logprob_count(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """The prompts, texts or lists of ids; at least one."""
        return self.prompt


def _check_parts(content: Any, where: str) -> None:
    """Refuse content parts other than text. Rendering checks everything else."""
    for number, part in enumerate(content if isinstance(content, list) else ()):
        path = f"{where}.{number}"
        if not isinstance(part, str | dict):
            raise invalid(f"{path} must be an object with a type, got {shown(part)}", path)
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise unsupported(
                f"{path}: parts of type {shown(kind)} are not supported, only text", path
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
