"""Conversations to prompts, with the chat template a model file carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from kinfolk.errors import RequestError, TemplateError
from kinfolk.text.formats import ChatFormat
from kinfolk.text.messages import normalize_messages

if TYPE_CHECKING:
    from jinja2 import Template

    from kinfolk.gguf.metadata import Metadata
    from kinfolk.text.tokenizer import Tokenizer

TEMPLATE: Final = "tokenizer.chat_template"
TOOL_TEMPLATE: Final = "tokenizer.chat_template.tool_use"
_OURS: Final = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
_TEMPLATE_FILE: Final = "<template>"
_FAILURE_STATUS: Final = 500
_PROBE_ANSWER: Final = {"role": "assistant", "content": "x"}
_PROBE_QUESTION: Final = {"role": "user", "content": "y"}

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation. ``fork`` is what :meth:`ChatTemplate.fork_point` says about it."""

    text: str
    tokens: list[int]
    fork: int | None


class ChatTemplate:
    """The template of one model, together with its tokenizer and the format of its family.

    ``source`` is jinja2 text; ``tool_source``, if the file has one, is used when there are tools.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        chat: ChatFormat | None = None,
        *,
        tool_source: str | None = None,
    ):
        self.source = source
        self._tool_source = tool_source
        self._tokenizer = tokenizer
        self._chat = chat or ChatFormat()
        self._bos = _token_text(tokenizer, tokenizer.bos)
        self._eos = _token_text(tokenizer, tokenizer.eos)

    @classmethod
    def from_metadata(
        cls, meta: Metadata, tokenizer: Tokenizer, chat: ChatFormat | None = None
    ) -> ChatTemplate | None:
        """The template of a file, or ``None`` if it has none."""
        if TEMPLATE not in meta:
            return None
        tool_source = meta.string(TOOL_TEMPLATE) if TOOL_TEMPLATE in meta else None
        return cls(meta.string(TEMPLATE), tokenizer, chat, tool_source=tool_source)

    def render(
        self,
        messages: Messages,
        /,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The conversation as text. ``variables`` are further values the template may look at.

        Raises :class:`TemplateError` with the template's own message if it refuses the
        conversation, and with the line at fault if it fails.
        """
        check_variables(variables)
        source = self._tool_source if tools and self._tool_source else self.source
        try:
            return self._fill(source, messages, tools, add_generation_prompt, variables)
        except TemplateError as error:
            if error.http_status == _FAILURE_STATUS and self._is_sound(source):
                raise _not_renderable(error) from error
            raise

    def prompt(
        self,
        messages: Messages,
        /,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> ChatPrompt:
        """Text, tokens and fork point of a conversation, each worked out once."""
        text = self.render(messages, tools, add_generation_prompt, **variables)
        probe = self._probe(messages, tools, add_generation_prompt, **variables)
        shared = 0 if probe is None else _shared_parts(self._tokenizer, text, probe)
        return self._encode(text, shared)

    def encode(
        self,
        messages: Messages,
        /,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The conversation as token ids."""
        return self._encode(self.render(messages, tools, add_generation_prompt, **variables)).tokens

    def fork_point(
        self,
        messages: Messages,
        /,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> int | None:
        """How many leading tokens of this prompt the next user turn's prompt begins with.

        Templates rewrite the last answer once another turn follows (its reasoning is dropped), so
        the next prompt departs from this one before its end. The place is found without knowing
        the template: the conversation is rendered with an answer and a question added, and cut
        after the last special token that both have in common. Ordinary tokens behind it may merge
        with what follows and do not count. ``None``: the template cannot render such a turn, or
        the two have no special token in common.
        """
        return self.prompt(messages, tools, add_generation_prompt, **variables).fork

    def _probe(
        self,
        messages: Messages,
        /,
        tools: Tools | None,
        add_generation_prompt: bool,
        **variables: Any,
    ) -> str | None:
        answered = bool(messages) and messages[-1].get("role") == "assistant"
        added = [_PROBE_QUESTION] if answered else [_PROBE_ANSWER, _PROBE_QUESTION]
        try:
            return self.render([*messages, *added], tools, add_generation_prompt, **variables)
        except TemplateError:
            return None

    def _encode(self, text: str, fork_parts: int = 0) -> ChatPrompt:
        """Tokens of a rendered text; ``fork_parts`` parts of it end at the fork point."""
        tokenizer = self._tokenizer
        parts = tokenizer.split_specials(text)
        # The template may have written the token that the tokenizer would put in front.
        tokens = tokenizer.encode("", add_bos=tokenizer.adds_bos and parts[:1] != [tokenizer.bos])
        fork = None
        for index, part in enumerate(parts, start=1):
            tokens.extend([part] if isinstance(part, int) else tokenizer.encode_plain(part))
            if index == fork_parts:
                fork = len(tokens)
        return ChatPrompt(text, tokens, fork)

    def _is_sound(self, source: str) -> bool:
        """Whether a template can render a plain question, or says itself why it does not."""
        try:
            self._fill(source, [_PROBE_QUESTION], None, True, {})
        except TemplateError as error:
            return error.http_status != _FAILURE_STATUS
        return True

    def _fill(
        self,
        source: str,
        messages: Messages,
        tools: Tools | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        ours = (
            normalize_messages(messages, self._chat),
            list(tools) if tools else None,
            add_generation_prompt,
            self._bos,
            self._eos,
        )
        return self._render(
            source, {"documents": None, **variables, **dict(zip(_OURS, ours, strict=True))}
        )

    def _render(self, source: str, variables: Mapping[str, Any]) -> str:
        from kinfolk.text.sandbox import BUDGET, Budget, BudgetError, Refusal

        template = _compiled(source)
        try:
            return template.render({**variables, BUDGET: Budget()})
        except Refusal as error:
            raise TemplateError(f"the chat template refuses the messages: {error}") from error
        except BudgetError as error:
            raise _failure(str(error), error) from error
        except Exception as error:  # a template can provoke any error
            raise _failure(f"{type(error).__name__}: {error}", error) from error


def reserved_variables() -> frozenset[str]:
    """Names that a template gets from us, or knows as functions of its own."""
    from kinfolk.text.sandbox import own_names

    return own_names() | {*_OURS, "self"}


def check_variables(names: Iterable[str]) -> None:
    """Raise :class:`RequestError` for a variable that is not the caller's to give."""
    if reserved := sorted(reserved_variables().intersection(names)):
        raise RequestError(f"the template variable {reserved[0]!r} cannot be given")


def _compiled(source: str) -> Template:
    from jinja2 import TemplateSyntaxError

    from kinfolk.text.sandbox import compile_template

    try:
        return compile_template(source)
    except TemplateSyntaxError as error:
        raise _at_line(f"the chat template is not valid: {error.message}", error.lineno) from error
    except Exception as error:  # too deep for the parser, or for the language it compiles to
        message = f"the chat template is not valid: {type(error).__name__}: {error}"
        raise _at_line(message, None) from error


def _not_renderable(error: TemplateError) -> TemplateError:
    """The same failure as that of the request: the file's template is sound."""
    return TemplateError(f"these messages, tools or template variables cannot be rendered: {error}")


def _failure(message: str, error: BaseException) -> TemplateError:
    return _at_line(f"the chat template failed: {message}", _template_line(error.__traceback__))


def _at_line(message: str, line: int | None) -> TemplateError:
    where = "" if line is None else f" (line {line} of the template)"
    result = TemplateError(message + where)
    # The file is at fault, not the request.
    result.http_status = _FAILURE_STATUS
    return result


def _template_line(traceback: TracebackType | None) -> int | None:
    """The innermost line of the template in a traceback, which jinja2 has rewritten."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _TEMPLATE_FILE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _token_text(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_text(token)


def _shared_parts(tokenizer: Tokenizer, text: str, other: str) -> int:
    """How many leading parts two texts share, up to and with the last special token among them."""
    shared = 0
    pairs: Iterable[tuple[str | int, str | int]] = zip(
        tokenizer.split_specials(text), tokenizer.split_specials(other), strict=False
    )
    for index, (part, counterpart) in enumerate(pairs, start=1):
        if part != counterpart:
            break
        if isinstance(part, int):
            shared = index
    return shared
