"""Checks of a policy or a family that scores chunks, alone and in the engine."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
import torch

from kinfolk.engine import chunk_scoring
from kinfolk.engine.runtime import Runtime
from kinfolk.hooks import HookProvider, ModelHookCaller, family_provider
from kinfolk.registry import Registry
from kinfolk.score_api import ChunkQuery, Keep, ScoreReason, Scores
from kinfolk.settings import Settings
from kinfolk.testing.checks.engine import answers
from kinfolk.testing.kit import Kit
from kinfolk.testing.marks import needs
from kinfolk.testing.policy_kit import PolicyKit
from kinfolk.types import CHUNK_POSITIONS

LENGTHS: Final = (2 * CHUNK_POSITIONS, 9 * CHUNK_POSITIONS + 5, 70 * CHUNK_POSITIONS + 63)
"""Committed positions: whole chunks, and a partly filled one behind them."""

AHEAD: Final = (1, 62)
"""Known tokens behind them: the pending one, or the end of a prompt."""

LONG_PROMPTS: Final = (700, 830)
REUSED: Final = 640


@dataclass(frozen=True, slots=True)
class ScorerUnderTest:
    """Somebody who answers ``score_chunks``: ``alone`` makes a caller that asks a new object of it
    and nobody else. With the settings ``paging`` and the plugins of ``registry`` it is asked in an
    engine with the ``model``."""

    model: Kit
    alone: Callable[[], ModelHookCaller]
    paging: Settings
    registry: Registry

    @classmethod
    def of_policy(cls, kit: PolicyKit) -> ScorerUnderTest:
        return cls(kit.model, kit.alone, kit.paged_settings(), kit.registry)

    @classmethod
    def of_family(cls, kit: Kit) -> ScorerUnderTest:
        def alone() -> ModelHookCaller:
            own = family_provider(kit.family, kit.config)
            return ModelHookCaller(HookProvider("nobody", object()), (), [own])

        return cls(kit, alone, kit.paged_settings(), kit.registry)


class ChunkScoreChecks:
    """``score_chunks`` of a policy answers one finite number a chunk, the same for the same
    query."""

    @needs("scores")
    def test_scores_are_one_finite_number_a_chunk(self, kinfolk_policy: PolicyKit) -> None:
        """For few and many chunks and every reason, the answer is float32 numbers, one for each
        chunk and all finite, or ``KEEP``, or ``None``."""
        check_numbers(ScorerUnderTest.of_policy(kinfolk_policy))

    @needs("scores")
    def test_equal_queries_have_equal_scores(self, kinfolk_policy: PolicyKit) -> None:
        """A query has the same answer from every object of the policy, whatever that was asked
        before: what a sequence sees must not depend on others."""
        check_equality(ScorerUnderTest.of_policy(kinfolk_policy))

    @needs("scores")
    def test_queries_are_left_alone(self, kinfolk_policy: PolicyKit) -> None:
        """``score_chunks`` changes none of the arrays and lists that it is given."""
        check_queries(ScorerUnderTest.of_policy(kinfolk_policy))

    @needs("scores")
    def test_long_requests_lose_no_round(self, kinfolk_policy: PolicyKit) -> None:
        """Requests longer than their budget, several at once and one that starts from a stored
        prefix, end well, and no round of selection fails."""
        check_rounds(ScorerUnderTest.of_policy(kinfolk_policy))


class FamilyScoreChecks:
    """The same of a family that answers ``score_chunks`` itself."""

    @needs("eviction", "scores")
    def test_scores_are_one_finite_number_a_chunk(self, kinfolk_kit: Kit) -> None:
        """The family's ``score_chunks`` answers float32 numbers, one for each chunk and all finite,
        or ``KEEP``, or ``None``, for few and many chunks and every reason."""
        check_numbers(ScorerUnderTest.of_family(kinfolk_kit))

    @needs("eviction", "scores")
    def test_equal_queries_have_equal_scores(self, kinfolk_kit: Kit) -> None:
        """A query has the same answer from every object of the family's hooks, whatever that was
        asked before: what a sequence sees must not depend on others."""
        check_equality(ScorerUnderTest.of_family(kinfolk_kit))

    @needs("eviction", "scores")
    def test_queries_are_left_alone(self, kinfolk_kit: Kit) -> None:
        """``score_chunks`` changes none of the arrays and lists that it is given."""
        check_queries(ScorerUnderTest.of_family(kinfolk_kit))

    @needs("eviction", "scores")
    def test_long_requests_lose_no_round(self, kinfolk_kit: Kit) -> None:
        """Requests longer than their budget, several at once and one that starts from a stored
        prefix, end well, and no round of selection fails."""
        check_rounds(ScorerUnderTest.of_family(kinfolk_kit))


def check_numbers(scorer: ScorerUnderTest) -> None:
    hooks = scorer.alone()
    for query in queries(scorer.model):
        answer = hooks.score_chunks(query)
        if not isinstance(answer, Scores):
            continue
        wrong = (~answer.values.isfinite()).nonzero().flatten().tolist()
        assert not wrong, (
            f"the score of chunk {wrong[0]} of {query.chunks} is "
            f"{float(answer.values[wrong[0]])}: it is not finite"
        )


def check_equality(scorer: ScorerUnderTest) -> None:
    asked = list(queries(scorer.model))
    first, second = scorer.alone(), scorer.alone()
    found = [first.score_chunks(query) for query in asked]
    again = [second.score_chunks(query) for query in reversed(asked)]
    again = [second.score_chunks(query) for query in reversed(asked)]
    for query, one, other in zip(asked, found, reversed(again), strict=True):
        assert same(one, other), (
            f"other scores for the same query of {query.chunks} chunks ({query.reason})"
        )


def check_queries(scorer: ScorerUnderTest) -> None:
    hooks = scorer.alone()
    for query, before in zip(queries(scorer.model), queries(scorer.model), strict=True):
        hooks.score_chunks(query)
        assert query.tokens == before.tokens, "score_chunks changed the text of the request"
        for name in ("resident", "last_used"):
            found, expected = getattr(query, name), getattr(before, name)
            assert np.array_equal(found, expected), f"score_chunks changed {name}"


def check_rounds(scorer: ScorerUnderTest) -> None:
    kit = scorer.model
    prompts = [kit.random_tokens(count, seed=count) for count in LONG_PROMPTS]
    again = [*prompts[0][:REUSED], *kit.random_tokens(250, seed=1)]
    with logged() as lines, Runtime.open(kit.path, scorer.paging, scorer.registry) as runtime:
        ended = answers(runtime, prompts, checkpoints=(REUSED,))
        ended += answers(runtime, [again])
        stats = runtime.engine.stats()
    assert not any(end.usage.exact for _, end in ended), "nothing was paged"
    assert ended[-1][1].usage.reused == REUSED
    assert stats["kvflash_selections"] >= len(ended), "nothing was scored"
    failures = stats["kvflash_scorer_failures"]
    assert not failures, f"{failures} rounds failed: {'; '.join(lines)}"


def queries(model: Kit) -> Iterator[ChunkQuery]:
    """The same queries each time, of new lists and arrays."""
    source = random.Random(5)
    for length in LENGTHS:
        for reason in get_args(ScoreReason):
            for ahead in AHEAD:
                chunks = length // CHUNK_POSITIONS
                resident = [source.random() < 0.5 for _ in range(chunks)]
                left = [source.randrange(length) for _ in range(chunks)]
                yield ChunkQuery(
                    tokens=model.random_tokens(length + ahead, seed=length),
                    length=length,
                    chunks=chunks,
                    resident=np.array(resident, np.bool_),
                    last_used=np.where(resident, length, left).astype(np.int64),
                    reason=reason,
                )


def same(one: Scores | Keep | None, other: Scores | Keep | None) -> bool:
    if isinstance(one, Scores) and isinstance(other, Scores):
        return torch.equal(one.values, other.values)
    return one is other


@contextmanager
def logged() -> Iterator[list[str]]:
    """The messages about rounds that failed."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    chunk_scoring.log.addHandler(handler)
    try:
        yield lines
    finally:
        chunk_scoring.log.removeHandler(handler)
