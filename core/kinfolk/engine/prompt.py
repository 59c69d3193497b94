"""From what a caller sends (text, messages, ids) to the tokens a request starts with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kinfolk.errors import RequestError
from kinfolk.text.tool_calls import ToolGrammar

if TYPE_CHECKING:
    from kinfolk.engine.runtime import Runtime


_OURS: Final = frozenset(("messages", "tools", "add_generation_prompt"))


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to start from.

    ``checkpoints`` are lengths at which later prompts may part from this one. ``think`` are the
    markers of reasoning if the answer may hold some, ``thinking`` says that the prompt ends inside
    it. ``calls`` says how tool calls look if the answer may hold some. ``keep`` asks for the state
    at the end of the answer: a conversation goes on from there.
    """

    tokens: tuple[int, ...]
    checkpoints: tuple[int, ...] = ()
    think: tuple[str, str] | None = None
    thinking: bool = False
    calls: ToolGrammar | None = None
    keep: bool = False


def text_prompt(runtime: Runtime, text: str) -> Prompt:
    """The text as it stands; it begins with BOS if the model file asks for that."""
    return _checked(runtime, tuple(runtime.tokenizer.encode(text)))


def token_prompt(runtime: Runtime, tokens: Sequence[int]) -> Prompt:
    """Exactly these ids."""
    return _checked(runtime, tuple(tokens))


def chat_prompt(
    runtime: Runtime,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    single_call: bool = False,
) -> Prompt:
    """The conversation in the words of the model's template, ready for the answer.

    ``variables`` are further ones for the template, ``tools`` functions that the answer may call;
    with ``single_call`` it ends with the first call. Raises :class:`TemplateError` if the template
    refuses the messages and :class:`RequestError` if the model has no template, or tools are given
    and its family does not say how it calls them.
    """
    chat = runtime.chat
    if chat is None:
        raise RequestError(
            f"model {runtime.name!r} has no chat template; ask it to complete a text instead"
        )
    taken = sorted(_OURS & (variables or {}).keys())
    if taken:
        raise RequestError(f"the template variable {taken[0]!r} cannot be given")
    calls = ToolGrammar.of(runtime.chat_format, tools, single=single_call) if tools else None
    if tools and calls is None:
        raise RequestError(
            f"model {runtime.name!r} cannot call tools: its family states no syntax for calls; "
            "send the request without 'tools'"
        )
    rendered = chat.prompt(messages, tools, **(variables or {}))
    think = runtime.chat_format.think
    return _checked(
        runtime,
        tuple(rendered.tokens),
        checkpoints=() if rendered.fork is None else (rendered.fork,),
        think=think,
        thinking=think is not None and rendered.text.rstrip().endswith(think[0]),
        calls=calls,
        keep=True,
    )


def _checked(runtime: Runtime, tokens: tuple[int, ...], **rest: Any) -> Prompt:
    if not tokens:
        raise RequestError("the prompt is empty; send at least one token")
    vocabulary = runtime.info.vocabulary
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        raise RequestError(
            f"prompt: token ids must be between 0 and {vocabulary - 1}, "
            f"it has {min(tokens)} to {max(tokens)}"
        )
    return Prompt(tokens, **rest)
