"""The order in which sequences decode: round robin with quanta."""

from __future__ import annotations

from collections.abc import Callable

from kinfolk.sched.request import Sequence


class Turns:
    """Decoding sequences in the order of their turns.

    A step serves the first ones. A sequence that has emitted its quantum goes behind all others, so
    each waiting sequence has a turn before it has another one. With R sequences, M places and
    quantum q no sequence waits longer than ``ceil((R - 1) * q / M)`` steps.
    """

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._order: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._order)

    def join(self, sequence: Sequence) -> None:
        sequence.served_in_turn = 0
        self._order.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        self._order = [other for other in self._order if other is not sequence]

    def front(self, places: int, waits: Callable[[Sequence], bool]) -> list[Sequence]:
        """The first ones, without those that wait for something."""
        return [seq for seq in self._order if not waits(seq)][:places]

    def rotate(self) -> None:
        """Send those whose turn is over to the back, in their order."""
        ended = [seq for seq in self._order if seq.served_in_turn >= self._quantum_of(seq)]
        if not ended:
            return
        self._order = [seq for seq in self._order if seq.served_in_turn < self._quantum_of(seq)]
        for sequence in ended:
            self.join(sequence)

    def _quantum_of(self, sequence: Sequence) -> int:
        return sequence.request.quantum or self._quantum
