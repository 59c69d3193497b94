"""Tells reasoning from answer in the text of a chat model, while it streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kinfolk.text.incremental import overlap

Kind = Literal["content", "reasoning"]


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Text of one kind; ``consumed`` characters of the stream went into it, markers included."""

    kind: Kind
    text: str
    consumed: int


class ReasoningSplitter:
    """Splits a stream at the markers ``opening`` and ``closing``.

    ``started``: the prompt ended in the opening marker, so the text begins inside the reasoning.
    Otherwise reasoning begins only at the very start: a marker further on is part of the answer.
    Space around markers belongs to neither side; it is held until it is known to be inside. Every
    character fed is consumed by exactly one segment, and nothing is ever taken back.
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
        # Space at the beginning of a part is dropped until its first letter.
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
        """What was held back, when nothing follows."""
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
        # The closing marker may have begun, and the space before it would not be shown.
        safe = len(self._held) - overlap(self._held, self._closing)
        safe = len(self._held[:safe].rstrip())
        self._emit(segments, "reasoning", self._held[:safe], safe)

    def _skip_space(self) -> None:
        if self._fresh:
            self._skip(len(self._held) - len(self._held.lstrip()))
            self._fresh = not self._held

    def _skip(self, length: int) -> None:
        """Pass over characters that are shown nowhere; the next segment accounts for them."""
        self._held = self._held[length:]
        self._skipped += length

    def _emit(self, segments: list[TextSegment], kind: Kind, text: str, consumed: int) -> None:
        if not consumed and not self._skipped:
            return
        self._held = self._held[consumed:]
        segments.append(TextSegment(kind, text, consumed + self._skipped))
        self._skipped = 0
