"""Tells tool calls from the text of an answer while it streams, in any family's syntax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kinfolk.text.formats import ChatFormat, TaggedArguments, ToolSyntax
from kinfolk.text.incremental import Reading, Source, overlap
from kinfolk.text.tool_arguments import (
    LONGEST_NAME,
    MalformedCall,
    ObjectReader,
    Parameters,
    TaggedReader,
    expect,
)

_NAME_ENDS: Final = " \t\r\n<>{}"


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is in no call; ``skipped`` characters before it are shown nowhere."""

    text: str
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A call begins. Indices count up from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A piece of the call's arguments. Together they are a JSON object once the call has ended."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """The call is complete. One without an end must not be carried out."""

    index: int


CallEvent = ToolStart | ToolArguments | ToolEnd


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """What calls look like in one answer.

    ``tools`` are the parameters' JSON schemas by function name; a call of any other function is
    text. Without them every name is accepted and values are typed by their looks. With ``single``
    nothing is read beyond the first complete call.
    """

    opening: str
    closing: str
    syntax: ToolSyntax
    tools: Mapping[str, Any] | None = None
    single: bool = False

    @classmethod
    def of(
        cls, chat: ChatFormat, tools: Sequence[Mapping[str, Any]], *, single: bool = False
    ) -> ToolGrammar | None:
        """The family's syntax and the tools of a request; ``None`` if it states no syntax."""
        if chat.tool_call is None or chat.tool_syntax is None:
            return None
        functions = [tool.get("function", tool) for tool in tools]
        schemas = {
            function["name"]: function.get("parameters", function.get("input_schema"))
            for function in functions
            if isinstance(function, Mapping) and isinstance(function.get("name"), str)
        }
        return cls(*chat.tool_call, chat.tool_syntax, schemas, single)


class ToolCallParser:
    """Splits a stream of text into content and calls, the same wherever the pieces are cut.

    Space around calls is dropped. What turns out to be no call, or breaks off within one, is given
    back as content, whole; if the call was announced by then it never gets its :class:`ToolEnd`.
    Held back is only what may still become a marker, the space before it, and values whose JSON
    depends on their end.
    """

    def __init__(self, grammar: ToolGrammar):
        self._grammar = grammar
        self.done = False
        """Whether what follows no longer matters."""
        self._source = Source()
        self._events: list[Content | CallEvent] = []
        self._begun = 0
        self._shown = 0
        # A function's own tag counts as a call even where the model left out the one around it.
        name = grammar.syntax.name[0]
        is_tagged = isinstance(grammar.syntax.arguments, TaggedArguments)
        self._openings = (grammar.opening, name) if is_tagged and name else (grammar.opening,)
        self._reading = self._read()

    def feed(self, text: str) -> list[Content | CallEvent]:
        """What is certain with this text."""
        self._source.text += text
        return self._go_on()

    def finish(self) -> list[Content | CallEvent]:
        """What was held back, when nothing follows."""
        self._source.closed = True
        return self._go_on()

    def _go_on(self) -> list[Content | CallEvent]:
        next(self._reading, None)
        events, self._events = self._events, []
        return events

    def _read(self) -> Reading[None]:
        source = self._source
        after_call = False
        while True:
            yield from self._content(after_call)
            if not source.text:
                return
            try:
                yield from self._call()
                after_call = True
                if self.done:
                    return
            except MalformedCall:
                self._show(source.marked())
                after_call = False

    def _content(self, after_call: bool) -> Reading[None]:
        """Show text up to the next call or the end; space before a call is left to it."""
        source = self._source
        if after_call:
            yield from source.skip_space()
        while True:
            starts = [place for place in map(source.text.find, self._openings) if place >= 0]
            held = max(overlap(source.text, opening) for opening in self._openings)
            safe = min(starts) if starts else len(source.text) - (0 if source.closed else held)
            text = source.text[:safe]
            if starts or not source.closed:
                text = text.rstrip()
            self._show(source.take(len(text)))
            source.mark()
            if starts or source.closed:
                source.take(safe - len(text))
                return
            yield

    def _call(self) -> Reading[None]:
        source, grammar = self._source, self._grammar
        before, after = grammar.syntax.name
        if (yield from source.at(*self._openings)) == grammar.opening:
            source.take(len(grammar.opening))
            yield from source.skip_space()
        if before:
            yield from expect(source, before)
            yield from source.skip_space()
        end = yield from source.find(_NAME_ENDS, LONGEST_NAME)
        name = source.text[: end or 0]
        if not name or (grammar.tools is not None and name not in grammar.tools):
            raise MalformedCall
        source.take(len(name))
        if after:
            yield from source.skip_space()
            yield from expect(source, after)
        index = self._begun
        yield from self._arguments(index, name)
        self._events.append(ToolEnd(index))
        self.done = grammar.single
        if self.done:
            return
        source.mark()
        yield from source.skip_space()
        if (yield from source.at(grammar.closing)):
            source.take(len(grammar.closing))

    def _arguments(self, index: int, name: str) -> Reading[None]:
        grammar, syntax = self._grammar, self._grammar.syntax.arguments
        parameters = Parameters((grammar.tools or {}).get(name))

        def write(fragment: str) -> None:
            # Nothing is announced before the arguments have begun well.
            if self._begun == index:
                self._begun += 1
                self._events.append(ToolStart(index, name))
            self._append(index, fragment)

        if isinstance(syntax, TaggedArguments):
            outer = (grammar.closing, grammar.opening)
            yield from TaggedReader(self._source, syntax, parameters, outer, write).read()
        else:
            yield from ObjectReader(self._source, syntax, parameters, write).read()

    def _append(self, index: int, fragment: str) -> None:
        if self._events and isinstance(last := self._events[-1], ToolArguments):
            self._events[-1] = ToolArguments(index, last.json + fragment)
        elif fragment:
            self._events.append(ToolArguments(index, fragment))

    def _show(self, text: str) -> None:
        if text:
            start = self._source.position - len(text)
            self._events.append(Content(text, start - self._shown))
            self._shown = self._source.position
