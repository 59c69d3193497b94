"""``SCHED_BATCH_PEEK``, ``_PROBE``, ``_TARGET_TAIL`` and ``_TARGET_STEP``: requests at one position
together."""

from __future__ import annotations

from collections.abc import Callable

from kinfolk.daemon.aligned import select
from kinfolk.daemon.commands import Batch, BatchCommand
from kinfolk.daemon.served import Rotation, Served
from kinfolk.daemon.surroundings import TurnEngine
from kinfolk.errors import RequestError


def run_batch(
    engine: TurnEngine,
    served: Rotation,
    command: BatchCommand,
    turn: Callable[[Served, int], None],
) -> tuple[str, bool] | None:
    """What to reply, and whether it is a failure; ``None`` if the ends of turns are the reply.

    ``turn`` gives a request a turn. Raises :class:`KinfolkError`.
    """
    candidates = served.candidates(engine.view())
    tail = command.kind is Batch.TAIL
    batch = select(candidates, command.most or served.slots, served.slots, tail=tail)
    if command.kind is Batch.PEEK:
        return str(batch), False
    if not batch.slots:
        raise RequestError(f"fewer than two requests are at one position: {batch}")
    chosen = [each for slot, each in served.held() if slot in batch.slots]
    if command.kind is Batch.PROBE:
        tokens = engine.probe([each.key for each in chosen])
        wrong = sum(together != alone for together, alone in tokens)
        return f"probe sequences={len(tokens)} mismatches={wrong}", wrong > 0
    for each in chosen:
        turn(each, 1)
    served.cursor = batch.cursor or 0
    return None
