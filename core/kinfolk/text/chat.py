"""Chat templates: from messages to prompt text and tokens."""

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
_CORE_VARIABLES: Final = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
_TEMPLATE_FILE: Final = "<template>"
_FAILURE_STATUS: Final = 500
_PROBE_ANSWER: Final = {"role": "assistant", "content": "x"}
_PROBE_QUESTION: Final = {"role": "user", "content": "y"}
_OTHER_QUESTION: Final = {"role": "user", "content": "z"}
_INSTRUCTING: Final = ("system", "developer")
LEAST_SHARED: Final = 64
"""Fewer tokens of system prompt and tools are no fork: computing them again costs nothing."""

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
Parts = Sequence[str | int]
"""Text between special tokens, and their ids."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation. ``forks`` are the lengths in tokens of prefixes that later prompts
    share, in increasing order.

    The last one is shared with the next turn. Templates rewrite the last answer when another turn
    follows (they drop its reasoning), so the next prompt diverges before the end of this one. To
    find where, the conversation is also rendered with an answer and a question appended. The one
    before it is shared with other conversations: it is behind system prompt and tools, and found
    with another first question.

    A fork is behind the last special token of the common prefix. Ordinary tokens behind it may
    merge differently and do not count, but if system prompt and tools are followed by no special
    token, all but the last of those that are the same do. There is no fork where no special token
    is shared, where the template refuses the probe, and behind fewer than ``LEAST_SHARED`` tokens
    of system prompt and tools.
    """

    text: str
    tokens: list[int]
    forks: tuple[int, ...] = ()


class ChatTemplate:
    """The chat template of a model, with its tokenizer and its family's chat format.

    ``source`` is jinja2 text; ``tool_source``, if not ``None``, replaces it for requests with
    tools.
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
        """The conversation as text. ``variables`` are further variables of the template.

        Raises :class:`TemplateError`: with the template's own message if it rejects the
        conversation, with the line at fault if it fails; :class:`RequestError` for a reserved
        variable.
        """
        check_variables(variables)
        source = self._tool_source if tools and self._tool_source else self.source
        try:
            return self._render_source(source, messages, tools, add_generation_prompt, variables)
        except TemplateError as error:
            if error.http_status == _FAILURE_STATUS and self._renders_question(source):
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
        """Text, tokens and forks of a conversation. Raises as :meth:`render` does."""
        text = self.render(messages, tools, add_generation_prompt, **variables)
        parts = self._tokenizer.split_specials(text)
        tokens, lengths = self._encode(parts)
        rest = (tools, add_generation_prompt, variables)
        other = self._probe(_with_other_question(messages), *rest)
        common = self._common(parts, lengths, tokens, other)
        turn = _shared_parts(parts, self._probe(_with_turn(messages), *rest))
        forks = {lengths[turn - 1]} if turn else set()
        if common >= LEAST_SHARED:
            forks.add(common)
        return ChatPrompt(text, tokens, tuple(sorted(forks)))

    def encode(
        self,
        messages: Messages,
        /,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The conversation as token ids."""
        text = self.render(messages, tools, add_generation_prompt, **variables)
        return self._encode(self._tokenizer.split_specials(text))[0]

    def _probe(
        self,
        messages: Messages,
        tools: Tools | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> Parts:
        """The parts of another conversation, none if the template refuses it."""
        try:
            text = self.render(messages, tools, add_generation_prompt, **variables)
        except TemplateError:
            return ()
        return self._tokenizer.split_specials(text)

    def _common(
        self, parts: Parts, lengths: Sequence[int], tokens: Sequence[int], others: Parts
    ) -> int:
        """How many tokens of a prompt another conversation with its system prompt shares."""
        special = _shared_parts(parts, others)
        length = lengths[special - 1] if special else 0
        if special >= min(len(parts), len(others)):
            return length
        part, other = parts[special], others[special]
        if isinstance(part, int) or isinstance(other, int):
            return length
        same = self._tokenizer.encode_plain(part[: _shared_length(part, other)])
        count = _shared_length(same, tokens[length : lengths[special]])
        return length + count - 1 if count > LEAST_SHARED else length

    def _encode(self, parts: Parts) -> tuple[list[int], list[int]]:
        """Tokens of a rendered text, and their number behind each of its parts."""
        tokenizer = self._tokenizer
        # The template may have written the BOS itself.
        tokens = tokenizer.encode("", add_bos=tokenizer.adds_bos and parts[:1] != [tokenizer.bos])
        lengths = []
        for part in parts:
            tokens.extend([part] if isinstance(part, int) else tokenizer.encode_plain(part))
            lengths.append(len(tokens))
        return tokens, lengths

    def _renders_question(self, source: str) -> bool:
        """Whether the template renders a plain question or rejects it; false if it fails."""
        try:
            self._render_source(source, [_PROBE_QUESTION], None, True, {})
        except TemplateError as error:
            return error.http_status != _FAILURE_STATUS
        return True

    def _render_source(
        self,
        source: str,
        messages: Messages,
        tools: Tools | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        core_values = (
            normalize_messages(messages, self._chat),
            list(tools) if tools else None,
            add_generation_prompt,
            self._bos,
            self._eos,
        )
        core = dict(zip(_CORE_VARIABLES, core_values, strict=True))
        return self._run(source, {"documents": None, **variables, **core})

    def _run(self, source: str, variables: Mapping[str, Any]) -> str:
        from kinfolk.text.sandbox import BUDGET, Budget, BudgetError, Refusal

        template = _compiled(source)
        try:
            return template.render({**variables, BUDGET: Budget()})
        except Refusal as error:
            raise TemplateError(f"the chat template rejects the messages: {error}") from error
        except BudgetError as error:
            raise _failure(str(error), error) from error
        except Exception as error:  # a template can provoke any error
            raise _failure(f"{type(error).__name__}: {error}", error) from error


def reserved_variables() -> frozenset[str]:
    """Template variables that callers cannot set: those that the core sets, and global
    functions."""
    from kinfolk.text.sandbox import global_names

    return global_names() | {*_CORE_VARIABLES, "self"}


def check_variables(names: Iterable[str]) -> None:
    """Raise :class:`RequestError` if a name is in :func:`reserved_variables`."""
    if reserved := sorted(reserved_variables().intersection(names)):
        raise RequestError(f"the template variable {reserved[0]!r} is reserved and cannot be set")


def _compiled(source: str) -> Template:
    from jinja2 import TemplateSyntaxError

    from kinfolk.text.sandbox import compile_template

    try:
        return compile_template(source)
    except TemplateSyntaxError as error:
        raise _at_line(f"the chat template is not valid: {error.message}", error.lineno) from error
    except Exception as error:  # e.g. nested too deep for jinja2 or for Python's compiler
        message = f"the chat template is not valid: {type(error).__name__}: {error}"
        raise _at_line(message, None) from error


def _not_renderable(error: TemplateError) -> TemplateError:
    """The failure as an error of the request, for a template that renders a plain question."""
    return TemplateError(f"these messages, tools or template variables cannot be rendered: {error}")


def _failure(message: str, error: BaseException) -> TemplateError:
    return _at_line(f"the chat template failed: {message}", _template_line(error.__traceback__))


def _at_line(message: str, line: int | None) -> TemplateError:
    where = "" if line is None else f" (line {line} of the template)"
    result = TemplateError(message + where)
    # An error of the file, not of the request.
    result.http_status = _FAILURE_STATUS
    return result


def _template_line(traceback: TracebackType | None) -> int | None:
    """The innermost template line in a traceback (jinja2 maps frames to template lines)."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _TEMPLATE_FILE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _token_text(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_text(token)


def _with_turn(messages: Messages) -> list[Mapping[str, Any]]:
    """The conversation with an answer and another question."""
    answered = bool(messages) and messages[-1].get("role") == "assistant"
    return [*messages, *([] if answered else [_PROBE_ANSWER]), _PROBE_QUESTION]


def _with_other_question(messages: Messages) -> list[Mapping[str, Any]]:
    """What instructs the model, and a question that does not begin like the first message: a prompt
    that is the same up to that. It is short, however long the conversation is."""
    count = next(
        (n for n, each in enumerate(messages) if each.get("role") not in _INSTRUCTING),
        len(messages),
    )
    asked = str(messages[count].get("content") if count < len(messages) else "")
    return [*messages[:count], _OTHER_QUESTION if asked.lstrip()[:1] == "y" else _PROBE_QUESTION]


def _shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many items from the first on are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _shared_parts(parts: Parts, others: Parts) -> int:
    """The number of leading parts that two texts share, up to the last shared special token."""
    shared = 0
    for index, (part, counterpart) in enumerate(zip(parts, others, strict=False), start=1):
        if part != counterpart:
            break
        if isinstance(part, int):
            shared = index
    return shared
