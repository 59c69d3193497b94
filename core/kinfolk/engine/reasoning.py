"""Splits the streamed text of a chat model into reasoning and answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kinfolk.text.incremental import overlap

Kind = Literal["content", "reasoning"]


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Text of one kind, made of ``consumed`` characters of the stream, markers included."""

    kind: Kind
    text: str
    consumed: int


class ReasoningSplitter:
    """Splits a stream at the markers ``opening`` and ``closing``.

    ``started``: the prompt ended in the opening marker, so the text begins inside the reasoning.
    Otherwise reasoning can begin only at the start of the text: a later marker is part of the
    answer. White space around markers is dropped, so it is held back until other text follows.
    Every character fed is consumed by exactly one segment; segments are never revised.
    """

    _BEFORE: Final = "before"
    _INSIDE: Final = "inside"
    _AFTER: Final = "after"

    def __init__(self, opening: str, closing: str, *, started: bool):
        self._opening = opening
        self._closing = closing
        self._phase = self._INSIDE if started else self._BEFORE
        self._held = ""
        self._skipped = 0
        # White space at the beginning of a part is dropped.
        self._fresh = True

    @property
    def inside(self) -> bool:
        return self._phase == self._INSIDE

    def feed(self, text: str) -> list[TextSegment]:
        self._held += text
        segments: list[TextSegment] = []
        if self._phase == self._BEFORE:
            self._look_for_opening()
        if self._phase == self._INSIDE:
            self._read_reasoning(segments)
        if self._phase == self._AFTER:
            self._skip_space()
            self._emit(segments, "content", self._held, len(self._held))
        return segments

    def finish(self) -> list[TextSegment]:
        """The text that was held back, at the end of the stream."""
        segments: list[TextSegment] = []
        if self.inside:
            self._emit(segments, "reasoning", self._held.rstrip(), len(self._held))
        else:
            self._emit(segments, "content", self._held, len(self._held))
        return segments

    def _look_for_opening(self) -> None:
        start = self._held.lstrip()
        if start.startswith(self._opening):
            self._skip(len(self._held) - len(start) + len(self._opening))
            self._phase = self._INSIDE
        elif not self._opening.startswith(start):
            self._phase = self._AFTER
            self._fresh = False

    def _read_reasoning(self, segments: list[TextSegment]) -> None:
        self._skip_space()
        end = self._held.find(self._closing)
        if end >= 0:
            consumed = end + len(self._closing)
            self._emit(segments, "reasoning", self._held[:end].rstrip(), consumed)
            self._phase, self._fresh = self._AFTER, True
            return
        # The held end may begin the closing marker, or be white space before it.
        safe = len(self._held) - overlap(self._held, self._closing)
        safe = len(self._held[:safe].rstrip())
        self._emit(segments, "reasoning", self._held[:safe], safe)

    def _skip_space(self) -> None:
        if self._fresh:
            self._skip(len(self._held) - len(self._held.lstrip()))
            self._fresh = not self._held

    def _skip(self, length: int) -> None:
        """Drop characters; the next segment counts them as consumed."""
        self._held = self._held[length:]
        self._skipped += length

    def _emit(self, segments: list[TextSegment], kind: Kind, text: str, consumed: int) -> None:
        if not consumed and not self._skipped:
            return
        self._held = self._held[consumed:]
        segments.append(TextSegment(kind, text, consumed + self._skipped))
        self._skipped = 0
