"""Tokens to text while they are generated: whole characters only, nothing that is taken back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kinfolk.text.stop import StopScanner

if TYPE_CHECKING:
    from kinfolk.text.tokenizer import Tokenizer


class Detokenizer:
    """Joins the bytes of tokens into text and never splits a character.

    At most three bytes wait for the rest of their character. Bytes that cannot become a character
    are U+FFFD at once; those that still wait at the end are one U+FFFD together. The whole equals
    :meth:`Tokenizer.decode`, or with the token ``before`` the stream what it adds to a text that
    ends there. Control tokens are left out unless ``show_control``.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, before: int | None = None, show_control: bool = False
    ):
        self._tokenizer = tokenizer
        self._before = before
        self._show_control = show_control
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The characters that are complete with this token."""
        before, self._before = self._before, token
        if not self._show_control and self._tokenizer.is_hidden(token):
            return ""
        return self._decoder.decode(self._tokenizer.bytes_after(before, token))

    def finish(self) -> str:
        """What is left when no token follows."""
        return self._decoder.decode(b"", final=True)


class TextStream:
    """The text of one answer, up to the first stop string.

    ``feed`` and ``finish`` return text to append to what was returned before. Once ``stop`` is set
    to the string that ended the answer, further tokens are ignored. ``tokens`` counts those used,
    the one that completed the stop string included: what a cache may keep of the sequence.
    ``before`` is the last token of what is answered.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        before: int | None = None,
        show_control: bool = False,
    ):
        self._detokenizer = Detokenizer(tokenizer, before=before, show_control=show_control)
        self._scanner = StopScanner(stop)
        self.tokens = 0

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, or ``None``."""
        return self._scanner.hit

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that is certain with these tokens."""
        certain = []
        for token in tokens:
            if self.stop is not None:
                break
            self.tokens += 1
            certain.append(self._scanner.feed(self._detokenizer.feed(token)))
        return "".join(certain)

    def finish(self) -> str:
        """What was held back, when no token follows."""
        return self._scanner.feed(self._detokenizer.finish()) + self._scanner.finish()
