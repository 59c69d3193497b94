"""Incremental detokenization: whole characters only, never retracted."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kinfolk.text.stop import StopScanner

if TYPE_CHECKING:
    from kinfolk.text.tokenizer import Tokenizer


class Detokenizer:
    """Decodes tokens to text, one whole character at a time.

    At most three bytes are held back, until their character is complete. Invalid bytes become
    U+FFFD at once; an incomplete character at the end becomes one U+FFFD. The concatenated text
    equals :meth:`Tokenizer.decode`; with ``before``, the token in front of the stream, it equals
    what decoding appends behind that token. Control tokens are skipped unless ``show_control``.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, before: int | None = None, show_control: bool = False
    ):
        self._tokenizer = tokenizer
        self._before = before
        self._show_control = show_control
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """Add a token; returns the characters that it completes."""
        before, self._before = self._before, token
        if not self._show_control and self._tokenizer.is_hidden(token):
            return ""
        return self._decoder.decode(self._tokenizer.bytes_after(before, token))

    def finish(self) -> str:
        """The text held back, at the end of the stream."""
        return self._decoder.decode(b"", final=True)


class TextStream:
    """The text of an answer up to the first stop string, streamed.

    ``feed`` and ``finish`` return text to append. Tokens behind a stop string are ignored.
    ``tokens`` counts the tokens used, including the one that completed the stop string: the length
    that a prefix cache may keep. ``before`` is the last token of the prompt.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, before: int | None = None
    ):
        self._detokenizer = Detokenizer(tokenizer, before=before)
        self._scanner = StopScanner(stop)
        self.tokens = 0

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, or ``None``."""
        return self._scanner.hit

    def feed(self, tokens: Iterable[int]) -> str:
        """Add tokens; returns the text that is now certain."""
        parts = []
        for token in tokens:
            if self.stop is not None:
                break
            self.tokens += 1
            parts.append(self._scanner.feed(self._detokenizer.feed(token)))
        return "".join(parts)

    def finish(self) -> str:
        """The text held back, at the end of the stream."""
        return self._scanner.feed(self._detokenizer.finish()) + self._scanner.finish()
