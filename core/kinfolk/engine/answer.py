"""One choice's way from tokens to text: stop strings, reasoning, log-probabilities."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinfolk.engine.reasoning import Kind, ReasoningSplitter, Segment
from kinfolk.sched.events import Emitted, Finished, Usage
from kinfolk.sched.plan import TokenLogprob
from kinfolk.sched.request import FinishReason
from kinfolk.text.stream import Detokenizer, TextStream

if TYPE_CHECKING:
    from kinfolk.engine.prompt import Prompt
    from kinfolk.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class SpelledToken:
    """A token with its text; bytes that are no whole character are U+FFFD in the text."""

    token: int
    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """A token of the answer and the likeliest tokens at its place. Natural logarithms."""

    chosen: SpelledToken
    top: tuple[SpelledToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to append to a choice. ``tokens`` were read for it, shown or not."""

    choice: int
    kind: Kind
    text: str
    logprobs: tuple[TextLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds as the caller saw them: until the first token, and from there to the last."""

    prompt: float
    decode: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The one last word about a choice.

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


class Answer:
    """Reads the events of one request.

    ``stopped`` becomes true when a stop string was found: the request is to be cancelled, and what
    it still emits is ignored.
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
        self._stream = TextStream(tokenizer, stop)
        self._silent = silent
        self._splitter = (
            None
            if prompt.think is None
            else ReasoningSplitter(*prompt.think, started=prompt.thinking)
        )
        self._aligner = LogprobAligner(tokenizer) if logprobs else None
        self._tokens = 0
        self._reasoning_tokens = 0
        self._started = self._first = self._last = time.perf_counter()

    @property
    def stopped(self) -> bool:
        return self._stream.stop is not None

    def feed(self, event: Emitted | Finished) -> list[Piece | Ended]:
        if isinstance(event, Finished):
            return self._finish(event)
        if self.stopped or self.ended:
            return []
        self._last = time.perf_counter()
        if not self._tokens:
            self._first = self._last
        segments: list[Segment] = []
        for place, token in enumerate(event.tokens):
            if self.stopped:
                break
            entry = event.logprobs[place] if place < len(event.logprobs) else None
            segments += self._read(token, entry)
        return self._pieces(segments)

    def _read(self, token: int, entry: TokenLogprob | None) -> list[Segment]:
        """The text that is certain with this token."""
        self._tokens += 1
        if self._splitter is not None and self._splitter.inside:
            self._reasoning_tokens += 1
        if token in self._silent:
            return []
        if self._aligner is not None and entry is not None:
            self._aligner.add(entry)
        return self._split(self._stream.feed((token,)))

    def _split(self, text: str) -> list[Segment]:
        if self._splitter is None:
            return [Segment("content", text, len(text))] if text else []
        return self._splitter.feed(text)

    def _pieces(self, segments: list[Segment]) -> list[Piece | Ended]:
        """Neighbours of one kind joined, each with the log-probabilities of its text."""
        pieces: list[Piece | Ended] = []
        kind: Kind = "content"
        text = ""
        logprobs: list[TextLogprob] = []
        for segment in segments:
            if segment.kind != kind and (text or logprobs):
                pieces.append(Piece(self.choice, kind, text, tuple(logprobs)))
                text, logprobs = "", []
            kind = segment.kind
            text += segment.text
            if self._aligner is not None:
                logprobs += self._aligner.take(segment.consumed)
        if text or logprobs:
            pieces.append(Piece(self.choice, kind, text, tuple(logprobs)))
        return pieces

    def _finish(self, event: Finished) -> list[Piece | Ended]:
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
            self._tokens,
            self._reasoning_tokens,
            Timings(self._first - self._started, self._last - self._first),
            self._stream.stop,
            None if self.stopped else event.error,
        )
        return [*self._pieces(segments), end]


class LogprobAligner:
    """Gives out the entries of tokens as their text is shown.

    Text may be held back and cut off, so entries wait until the stream has consumed the last
    character of their token. Entries of what is never shown are never given out.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self._added = 0
        self._taken = 0

    def add(self, entry: TokenLogprob) -> None:
        self._added += len(self._detokenizer.feed(entry.token))
        if not self._tokenizer.is_hidden(entry.token):
            self._waiting.append((self._added, entry))

    def take(self, characters: int) -> list[TextLogprob]:
        """Entries of the tokens that end within the next ``characters`` of the stream."""
        self._taken += characters
        entries = []
        while self._waiting and self._waiting[0][0] <= self._taken:
            entries.append(self._spell(self._waiting.popleft()[1]))
        return entries

    def _spell(self, entry: TokenLogprob) -> TextLogprob:
        top = tuple(self._spelled(token, logprob) for token, logprob in entry.top)
        return TextLogprob(self._spelled(entry.token, entry.logprob), top)

    def _spelled(self, token: int, logprob: float) -> SpelledToken:
        raw = self._tokenizer.token_bytes(token)
        return SpelledToken(token, raw.decode("utf-8", "replace"), raw, logprob)
