"""Incremental parsers of tool-call arguments, from a family's syntax to JSON.

A reader writes fragments that concatenate to one JSON object, and raises :class:`MalformedCall` as
soon as the text cannot be a call. String values are streamed; other values are written when they
are complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kinfolk.errors import KinfolkError
from kinfolk.text.formats import ObjectArguments, TaggedArguments
from kinfolk.text.incremental import Parse, TextBuffer, overlap
from kinfolk.text.tool_values import STRING_TYPES, Types, coerce, escape, to_json, types_of

LONGEST_NAME: Final = 256
_LONGEST_WORD: Final = 4096
_DEEPEST: Final = 64


class MalformedCall(KinfolkError):
    """The text is not a tool call. Caught by the parser."""


class ToolParameters:
    """Parameter types and required names from a function's JSON schema, ``None`` = unknown."""

    def __init__(self, schema: Any = None):
        self._schema = stated = schema if isinstance(schema, Mapping) else {}
        properties = stated.get("properties")
        required = stated.get("required")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self.required = frozenset(
            name
            for name in (required if isinstance(required, list) else ())
            if isinstance(name, str)
        )

    def types(self, key: str) -> Types:
        return types_of(self._properties.get(key), self._schema)


class TaggedReader:
    """Reads :class:`TaggedArguments`; ``outer`` are further markers that may end the call."""

    def __init__(
        self,
        source: TextBuffer,
        syntax: TaggedArguments,
        parameters: ToolParameters,
        outer: Sequence[str],
        write: Callable[[str], None],
    ):
        self._source = source
        self._syntax = syntax
        self._parameters = parameters
        self._write = write
        self._ends = tuple(filter(None, (syntax.end, *outer)))
        self._after_value = (syntax.key[0], *self._ends)

    def read(self) -> Parse[None]:
        source, syntax = self._source, self._syntax
        seen: set[str] = set()
        while True:
            yield from source.skip_space()
            marker = yield from source.at(*self._after_value)
            if marker != syntax.key[0]:
                break
            source.take(len(marker))
            key = yield from self._key()
            if key in seen:
                yield from self._value(lambda text: None)
                continue
            self._write(", " if seen else "{")
            self._write(f"{to_json(key)}: ")
            seen.add(key)
            yield from self._typed_value(self._parameters.types(key))
        if marker is None and not self._may_end_here(seen):
            raise MalformedCall
        if marker == syntax.end:
            source.take(len(marker))
        self._write("}" if seen else "{}")

    def _may_end_here(self, seen: set[str]) -> bool:
        """Whether the call may end here, at the end of the text, without a closing marker."""
        source = self._source
        at_end = source.closed and not source.text
        return at_end and not self._syntax.end and self._parameters.required <= seen

    def _key(self) -> Parse[str]:
        source = self._source
        closing, opening = self._syntax.key[1], self._syntax.value[0]
        end = yield from source.find(closing[0], LONGEST_NAME)
        key = source.text[: end or 0].strip()
        if not key or "<" in key or "\n" in key:
            raise MalformedCall
        source.take(end or 0)
        yield from expect(source, closing)
        if opening:
            yield from source.skip_space()
            yield from expect(source, opening)
        return key

    def _typed_value(self, types: Types) -> Parse[None]:
        if types == STRING_TYPES:
            self._write('"')
            yield from self._value(lambda text: self._write(escape(text)))
            self._write('"')
            return
        parts: list[str] = []
        yield from self._value(parts.append)
        self._write(coerce("".join(parts), types))

    def _value(self, show: Callable[[str], None]) -> Parse[None]:
        """Pass the text of a value, without padding, to ``show``. A closing tag ends the value only
        if a tag or the end of the call follows; otherwise it is part of the value."""
        source, closing, padding = self._source, self._syntax.value[1], self._syntax.padding
        if padding and (yield from source.at(padding)):
            source.take(len(padding))
        while True:
            end = source.text.find(closing)
            if end < 0:
                if source.closed:
                    raise MalformedCall
                safe = source.text[: len(source.text) - overlap(source.text, closing)]
                show(source.take(len(_unpadded(safe, padding))))
                yield
                continue
            is_end = self._starts_with_tag(source.text[end + len(closing) :].lstrip())
            if is_end is None:
                yield
            elif is_end:
                value = source.take(end + len(closing))[:end]
                show(_unpadded(value, padding))
                return
            else:
                # The value contains the closing tag.
                show(source.take(end + len(closing)))

    def _starts_with_tag(self, rest: str) -> bool | None:
        """Whether ``rest`` starts with a tag, or is the end; ``None`` if more text is needed."""
        if rest.startswith(self._after_value):
            return True
        if self._source.closed:
            return not rest
        return None if any(tag.startswith(rest) for tag in self._after_value) else False


class ObjectReader:
    """Reads :class:`ObjectArguments`."""

    def __init__(
        self,
        source: TextBuffer,
        syntax: ObjectArguments,
        parameters: ToolParameters,
        write: Callable[[str], None],
    ):
        self._source = source
        self._quote = syntax.quote
        self._parameters = parameters
        self._write = write

    def read(self) -> Parse[None]:
        if (yield from self._next()) != "{":
            raise MalformedCall
        yield from self._object(0)

    def _next(self) -> Parse[str]:
        """The next character that is not white space. Does not consume it."""
        yield from self._source.skip_space()
        if not self._source.text:
            raise MalformedCall
        return self._source.text[0]

    def _object(self, depth: int) -> Parse[None]:
        count = 0
        self._open("{", depth)
        while (yield from self._is_item("}", count)):
            key = yield from self._key()
            if (yield from self._next()) != ":":
                raise MalformedCall
            self._source.take(1)
            self._write(f"{', ' if count else ''}{to_json(key)}: ")
            yield from self._value(() if depth else self._parameters.types(key), depth)
            count += 1

    def _array(self, depth: int) -> Parse[None]:
        count = 0
        self._open("[", depth)
        while (yield from self._is_item("]", count)):
            self._write(", " if count else "")
            yield from self._value((), depth)
            count += 1

    def _open(self, bracket: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise MalformedCall
        self._source.take(1)
        self._write(bracket)

    def _is_item(self, closing: str, count: int) -> Parse[bool]:
        """Whether another item follows; if not, consumes the closing bracket."""
        following = yield from self._next()
        if following == "," and count:
            self._source.take(1)
            following = yield from self._next()
        elif count and following != closing:
            raise MalformedCall
        if following == closing:
            self._source.take(1)
            self._write(closing)
        return following != closing

    def _key(self) -> Parse[str]:
        source = self._source
        if (yield from source.at(self._quote)):
            parts: list[str] = []
            yield from self._quoted(parts.append)
            return "".join(parts)
        if source.text[0] == '"':
            return (yield from self._json_string())
        end = yield from source.find(':,{}[]<"\n', LONGEST_NAME)
        if not end or source.text[end] != ":":
            raise MalformedCall
        return source.take(end).strip()

    def _value(self, types: Types, depth: int) -> Parse[None]:
        first = yield from self._next()
        if (yield from self._source.at(self._quote)):
            self._write('"')
            yield from self._quoted(lambda text: self._write(escape(text)))
            self._write('"')
        elif first == "{":
            yield from self._object(depth + 1)
        elif first == "[":
            yield from self._array(depth + 1)
        elif first == '"':
            self._write(to_json((yield from self._json_string())))
        else:
            self._write(coerce((yield from self._word()), types))

    def _quoted(self, show: Callable[[str], None]) -> Parse[None]:
        """Stream a quoted string to ``show``. It has no escapes."""
        source, quote = self._source, self._quote
        source.take(len(quote))
        while (end := source.text.find(quote)) < 0:
            if source.closed:
                raise MalformedCall
            show(source.take(len(source.text) - overlap(source.text, quote)))
            yield
        show(source.take(end))
        source.take(len(quote))

    def _json_string(self) -> Parse[str]:
        source = self._source
        end = 1
        while True:
            end = source.text.find('"', end)
            if end < 0:
                if source.closed:
                    raise MalformedCall
                end = len(source.text)
                yield
                continue
            before = source.text[1:end]
            end += 1
            if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
                break
        text = source.take(end)
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            return text[1:-1]

    def _word(self) -> Parse[str]:
        source = self._source
        end = yield from source.find(",}]<", _LONGEST_WORD)
        # "<" begins a marker: the object was not closed.
        if end is None or source.text[end] == "<":
            raise MalformedCall
        word = source.take(end).strip()
        if not word:
            raise MalformedCall
        return word


def expect(source: TextBuffer, marker: str) -> Parse[None]:
    """Consume the marker. Raises :class:`MalformedCall` if the text does not begin with it."""
    if (yield from source.at(marker)) is None:
        raise MalformedCall
    source.take(len(marker))


def _unpadded(text: str, padding: str) -> str:
    return text.removesuffix(padding) if padding else text
