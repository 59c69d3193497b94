"""Prompts: the tokens of a request, from text, chat messages or token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kinfolk.errors import RequestError, shown
from kinfolk.sched.acceptance import check_tokens
from kinfolk.text.chat import check_variables
from kinfolk.text.formats import ChatFormat
from kinfolk.text.tool_calls import ToolGrammar

if TYPE_CHECKING:
    from kinfolk.engine.compressed import Compression
    from kinfolk.engine.runtime import Runtime


ROLES: Final = ("system", "user", "assistant", "tool")
"""Roles of the chat protocol; a family may have further names for them."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens of a prompt, and ``field``, its name in the caller's request.

    ``checkpoints`` are lengths at which later prompts may branch off. ``think`` are the opening and
    closing markers of reasoning if the answer may have some, ``thinking``: the prompt ends inside
    reasoning. ``calls`` is the syntax of tool calls if the answer may have some. ``keep``: later
    prompts may start from this one, so take these checkpoints, and at the end of the answer, where
    a conversation continues; else nothing is kept. ``compression``: what became of it, if anything
    of the prompt could have been left out.
    """

    tokens: tuple[int, ...]
    field: str = "prompt"
    checkpoints: tuple[int, ...] = ()
    think: tuple[str, str] | None = None
    thinking: bool = False
    calls: ToolGrammar | None = None
    keep: bool = False
    compression: Compression | None = None


def text_prompt(runtime: Runtime, text: str, field: str = "prompt") -> Prompt:
    """The tokens of a text without a template, with BOS if the model file asks for it."""
    return _checked(runtime, tuple(runtime.tokenizer.encode(text)), field)


def token_prompt(runtime: Runtime, tokens: Sequence[int], field: str = "prompt") -> Prompt:
    """Exactly these ids. Raises :class:`RequestError` for no ids or one outside the vocabulary."""
    return _checked(runtime, tuple(tokens), field)


def chat_prompt(
    runtime: Runtime,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    single_call: bool = False,
) -> Prompt:
    """The conversation, rendered by the model's chat template up to the start of the answer.

    ``variables`` are passed to the template, ``tools`` are functions that the answer may call;
    with ``single_call`` the answer ends with its first call. Raises :class:`TemplateError` if the
    template refuses the messages, and :class:`RequestError` if the model has no template or if
    ``tools`` are given and its family states no syntax for calls.
    """
    chat = runtime.chat
    if chat is None:
        raise RequestError(
            f"model {runtime.name!r} has no chat template; ask it to complete a text instead"
        )
    check_variables(variables or {})
    _check_roles(messages, runtime.chat_format)
    calls = ToolGrammar.of(runtime.chat_format, tools, single=single_call) if tools else None
    if tools and calls is None:
        raise RequestError(
            f"model {runtime.name!r} cannot call tools: its family states no syntax for calls; "
            "send the request without 'tools'",
            field="tools",
        )
    try:
        rendered = chat.prompt(messages, tools, **(variables or {}))
    except RequestError as error:
        error.field = error.field or "messages"
        raise
    think = runtime.chat_format.think
    return _checked(
        runtime,
        tuple(rendered.tokens),
        "messages",
        checkpoints=rendered.forks,
        think=think,
        thinking=think is not None and rendered.text.rstrip().endswith(think[0]),
        calls=calls,
        keep=True,
    )


def _check_roles(messages: Sequence[Mapping[str, Any]], chat_format: ChatFormat) -> None:
    """Raise :class:`RequestError` for an unknown role: templates may ignore it silently."""
    allowed = (*ROLES, *chat_format.role_aliases)
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in allowed:
            raise RequestError(
                f"messages.{index}.role must be one of {', '.join(allowed)}, got {shown(role)}",
                field=f"messages.{index}.role",
            )


def _checked(runtime: Runtime, tokens: tuple[int, ...], field: str, **rest: Any) -> Prompt:
    check_tokens(tokens, runtime.info.vocabulary, field)
    return Prompt(tokens, field, **rest)
