"""Incremental tool-call parser: splits a streamed answer into content and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kinfolk.text.formats import ChatFormat, TaggedArguments, ToolSyntax
from kinfolk.text.incremental import Parse, TextBuffer, overlap
from kinfolk.text.tool_arguments import (
    LONGEST_NAME,
    MalformedCall,
    ObjectReader,
    TaggedReader,
    ToolParameters,
    expect,
)

_NAME_ENDS: Final = " \t\r\n<>{}"


@dataclass(frozen=True, slots=True)
class Content:
    """Text outside of calls; ``skipped`` characters in front of it are dropped."""

    text: str
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class ToolStart:
    """Start of call ``index``, counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A fragment of a call's arguments; the fragments of a complete call concatenate to a JSON
    object."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """End of a complete call. A call without this event must not be executed."""

    index: int


CallEvent = ToolStart | ToolArguments | ToolEnd


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """Syntax and tools of the calls in one answer.

    ``tools`` maps function names to JSON schemas of their parameters; a call of any other function
    is content. ``None`` accepts every name and infers the types of values. With ``single`` parsing
    stops after the first complete call.
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
        """The grammar of a family's syntax and a request's tools; ``None`` without a syntax."""
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
    """Splits streamed text into content and calls, independently of how it is split into pieces.

    White space around calls is dropped. A malformed or incomplete call is returned as content; if
    its :class:`ToolStart` was already emitted, no :class:`ToolEnd` follows. Text is held back only
    while it may be a marker, as white space before a marker, or in a value that is not a string.
    """

    def __init__(self, grammar: ToolGrammar):
        self._grammar = grammar
        self.done = False
        """Whether parsing has stopped (``single``): further text is ignored."""
        self._source = TextBuffer()
        self._events: list[Content | CallEvent] = []
        self._begun = 0
        self._shown = 0
        # Models sometimes omit the outer marker: the tag of a function's name also opens a call.
        name = grammar.syntax.name[0]
        is_tagged = isinstance(grammar.syntax.arguments, TaggedArguments)
        self._openings = (grammar.opening, name) if is_tagged and name else (grammar.opening,)
        self._reading = self._read()

    def feed(self, text: str) -> list[Content | CallEvent]:
        """Add text; returns the events that are now certain."""
        self._source.text += text
        return self._resume()

    def finish(self) -> list[Content | CallEvent]:
        """The remaining events, at the end of the stream."""
        self._source.closed = True
        return self._resume()

    def _resume(self) -> list[Content | CallEvent]:
        next(self._reading, None)
        events, self._events = self._events, []
        return events

    def _read(self) -> Parse[None]:
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

    def _content(self, after_call: bool) -> Parse[None]:
        """Emit content up to the next call or the end, without the white space before a call."""
        source = self._source
        if after_call:
            yield from source.skip_space()
        while True:
            starts = [start for start in map(source.text.find, self._openings) if start >= 0]
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

    def _call(self) -> Parse[None]:
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

    def _arguments(self, index: int, name: str) -> Parse[None]:
        grammar, syntax = self._grammar, self._grammar.syntax.arguments
        parameters = ToolParameters((grammar.tools or {}).get(name))

        def write(fragment: str) -> None:
            # A call starts when its first argument has parsed.
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
