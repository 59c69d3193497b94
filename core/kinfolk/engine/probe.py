"""Probes of held requests: their next tokens, computed together and alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kinfolk.engine.failures import explain
from kinfolk.engine.history import History
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.errors import EngineError
from kinfolk.sched.scheduler import Scheduler


def probe(
    request_ids: Sequence[str],
    scheduler: Scheduler,
    runner: ModelRunner,
    histories: Mapping[str, History],
    fail: Callable[[BaseException], None],
    arrived: Callable[[Iterable[int]], None],
) -> list[tuple[int, int]]:
    """For each request its next token, in one step of all and in a step of its own. Copies compute
    it, so nothing changes. ``fail`` hears of an error of the device, and ``arrived`` of the bytes
    that came to host memory meanwhile."""

    def run(chosen: Sequence[str]) -> list[int]:
        with scheduler.forks(chosen) as plan:
            copies = {each: histories[each].copy() for each in chosen}
            try:
                result = runner.run(plan, copies)
            except Exception as error:
                fault = error
            else:
                arrived(result.arrived)
                for each in result.results:
                    if each.error is not None:
                        raise EngineError(each.error)
                return [each.emitted[0] for each in result.results]
        fail(fault)
        raise EngineError(explain(fault))

    together = run(request_ids)
    alone = [token for each in request_ids for token in run([each])]
    return list(zip(together, alone, strict=True))
