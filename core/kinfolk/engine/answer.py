"""Turns the tokens of one choice into text: stop strings, reasoning, calls, log-probabilities."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinfolk.engine.reasoning import Kind, ReasoningSplitter, TextSegment
from kinfolk.sched.events import Emitted, Finished, Usage
from kinfolk.sched.plan import TokenLogprob
from kinfolk.sched.request import FinishReason
from kinfolk.text.stream import Detokenizer, TextStream
from kinfolk.text.tool_calls import CallEvent, Content, ToolArguments, ToolCallParser

if TYPE_CHECKING:
    from kinfolk.engine.prompt import Prompt
    from kinfolk.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class SpelledToken:
    """A token with its text and bytes; incomplete UTF-8 is U+FFFD in the text."""

    token: int
    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """A token of the answer and the likeliest alternatives. Natural logarithms. ``start``: the
    characters of the answer before those that the token ends."""

    chosen: SpelledToken
    top: tuple[SpelledToken, ...] = ()
    start: int = 0


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text to append to a choice, and the log-probabilities of the tokens that it ends."""

    choice: int
    kind: Kind
    text: str
    logprobs: tuple[TextLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CallPiece:
    """An event of a tool call in the answer."""

    choice: int
    event: CallEvent


def joined(first: object, second: TextPiece | CallPiece) -> TextPiece | CallPiece | None:
    """Two consecutive pieces of one choice and kind as one piece; ``None`` if they cannot join."""
    if isinstance(first, TextPiece) and isinstance(second, TextPiece) and first.kind == second.kind:
        logprobs = first.logprobs + second.logprobs
        return TextPiece(second.choice, second.kind, first.text + second.text, logprobs)
    if isinstance(first, CallPiece) and isinstance(second, CallPiece):
        before, after = first.event, second.event
        if isinstance(before, ToolArguments) and isinstance(after, ToolArguments):
            return CallPiece(second.choice, ToolArguments(after.index, before.json + after.json))
    return None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds measured by the caller: ``prompt`` until the first token, ``decode`` after it."""

    prompt: float
    decode: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a choice, exactly one for each.

    ``tokens`` were generated for it, ``reasoning_tokens`` of them before the answer proper;
    ``stop`` is the stop string that ended it. ``error`` is set when ``reason`` is ``ERROR``.
    """

    choice: int
    reason: FinishReason
    usage: Usage
    tokens: int
    reasoning_tokens: int
    timings: Timings
    stop: str | None = None
    error: str | None = None


AnswerPart = TextPiece | CallPiece | Ended


class Answer:
    """Converts the engine's events of one request to parts of the answer.

    ``stopped`` becomes true at a stop string, or after the call that a single-call prompt allows:
    the caller cancels the request, and its later tokens are ignored. ``tokens`` were read so far.
    """

    def __init__(
        self,
        choice: int,
        tokenizer: Tokenizer,
        prompt: Prompt,
        stop: Sequence[str],
        silent: frozenset[int],
        logprobs: bool,
    ):
        self.choice = choice
        self.ended = False
        before = prompt.tokens[-1] if prompt.tokens else None
        self._stream = TextStream(tokenizer, stop, before=before)
        self._silent = silent
        self._splitter = (
            None
            if prompt.think is None
            else ReasoningSplitter(*prompt.think, started=prompt.thinking)
        )
        self._calls = None if prompt.calls is None else ToolCallParser(prompt.calls)
        self._aligner = LogprobAligner(tokenizer, before) if logprobs else None
        self.tokens = 0
        self._reasoning_tokens = 0
        # The time to the first token includes that of compressing the prompt.
        compression = prompt.compression
        self._started = time.perf_counter() if compression is None else compression.began
        self._first = self._last = self._started

    @property
    def stopped(self) -> bool:
        return self._stream.stop is not None or (self._calls is not None and self._calls.done)

    def feed(self, event: Emitted | Finished) -> list[AnswerPart]:
        if isinstance(event, Finished):
            return self._finish(event)
        if self.stopped or self.ended:
            return []
        self._last = time.perf_counter()
        if not self.tokens:
            self._first = self._last
        segments: list[TextSegment] = []
        for place, token in enumerate(event.tokens):
            if self.stopped:
                break
            entry = event.logprobs[place] if place < len(event.logprobs) else None
            segments += self._read(token, entry)
        return self._pieces(segments)

    def _read(self, token: int, entry: TokenLogprob | None) -> list[TextSegment]:
        """The text that is complete with this token."""
        self.tokens += 1
        if self._splitter is not None and self._splitter.inside:
            self._reasoning_tokens += 1
        if token in self._silent:
            return []
        if self._aligner is not None and entry is not None:
            self._aligner.add(entry)
        return self._split(self._stream.feed((token,)))

    def _split(self, text: str) -> list[TextSegment]:
        if self._splitter is None:
            return [TextSegment("content", text, len(text))] if text else []
        return self._splitter.feed(text)

    def _pieces(self, segments: list[TextSegment], *, last: bool = False) -> list[AnswerPart]:
        """Segments of one kind joined, with the log-probabilities of their text."""
        pieces: list[AnswerPart] = []
        for part in self._parts(segments, last):
            piece: TextPiece | CallPiece
            if isinstance(part, TextSegment):
                logprobs = self._take(part.consumed)
                if not part.text and not logprobs:
                    continue
                piece = TextPiece(self.choice, part.kind, part.text, logprobs)
            else:
                piece = CallPiece(self.choice, part)
            whole = joined(pieces[-1], piece) if pieces else None
            if whole is None:
                pieces.append(piece)
            else:
                pieces[-1] = whole
        return pieces

    def _parts(self, segments: list[TextSegment], last: bool) -> Iterator[TextSegment | CallEvent]:
        """The segments, with tool calls parsed out of their content."""
        if self._calls is None:
            yield from segments
            return
        for segment in segments:
            if segment.kind != "content":
                yield segment
                continue
            if passed := segment.consumed - len(segment.text):
                yield TextSegment("content", "", passed)
            yield from self._called(self._calls.feed(segment.text))
        if last:
            yield from self._called(self._calls.finish())

    def _called(self, events: list[Content | CallEvent]) -> Iterator[TextSegment | CallEvent]:
        for event in events:
            if isinstance(event, Content):
                # The text of a call is not shown, so its log-probabilities are dropped.
                self._take(event.skipped)
                yield TextSegment("content", event.text, len(event.text))
            else:
                yield event

    def _take(self, characters: int) -> tuple[TextLogprob, ...]:
        return () if self._aligner is None else tuple(self._aligner.take(characters))

    def _finish(self, event: Finished) -> list[AnswerPart]:
        if self.ended:
            return []
        self.ended = True
        segments = self._split(self._stream.finish())
        if self._splitter is not None:
            segments += self._splitter.finish()
        end = Ended(
            self.choice,
            FinishReason.STOP if self.stopped else event.reason,
            event.usage,
            self.tokens,
            self._reasoning_tokens,
            Timings(self._first - self._started, self._last - self._first),
            self._stream.stop,
            None if self.stopped else event.error,
        )
        return [*self._pieces(segments, last=True), end]


class LogprobAligner:
    """Aligns the log-probabilities of tokens with the text that is shown.

    Text may be held back or cut off, so an entry waits until the stream has consumed the last
    character of its token. Entries of tokens that are never shown are dropped.
    """

    def __init__(self, tokenizer: Tokenizer, before: int | None):
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, before=before)
        self._waiting: deque[tuple[int, int, TokenLogprob]] = deque()
        self._added = 0
        self._taken = 0

    def add(self, entry: TokenLogprob) -> None:
        start = self._added
        self._added += len(self._detokenizer.feed(entry.token))
        if not self._tokenizer.is_hidden(entry.token):
            self._waiting.append((self._added, start, entry))

    def take(self, characters: int) -> list[TextLogprob]:
        """Entries of the tokens that end within the next ``characters`` of the stream."""
        self._taken += characters
        entries = []
        while self._waiting and self._waiting[0][0] <= self._taken:
            entries.append(self._spell(*self._waiting.popleft()[1:]))
        return entries

    def _spell(self, start: int, entry: TokenLogprob) -> TextLogprob:
        top = tuple(self._spelled(token, logprob) for token, logprob in entry.top)
        return TextLogprob(self._spelled(entry.token, entry.logprob), top, start)

    def _spelled(self, token: int, logprob: float) -> SpelledToken:
        raw = self._tokenizer.token_bytes(token)
        return SpelledToken(token, raw.decode("utf-8", "replace"), raw, logprob)
