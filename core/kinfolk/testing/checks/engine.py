"""From a request to its tokens, through the engine that serves users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kinfolk.engine.runtime import Runtime
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import FinishReason, Request, Sampling
from kinfolk.testing.kit import Kit
from kinfolk.testing.marks import needs

ANSWER = 20
MUCH = 100.0
"""Added to logits, more than there is between any two of them."""
ROUNDING = 1e-3
"""How far below the largest a logit may be, by its size: answers are computed in other batches."""


class EngineChecks:
    """Greedy answers: the model's own choice, token after token."""

    @needs("tiny")
    def test_greedy_answers_are_the_models_choice(self, kinfolk_kit: Kit) -> None:
        """Several requests at once get what each would choose by itself, one token at a time."""
        prompts = [kinfolk_kit.tokens[:n] for n in (3, 64, 100)]
        with engine(kinfolk_kit) as runtime:
            found = [tokens for tokens, _ in answers(runtime, prompts)]
        for prompt, tokens in zip(prompts, found, strict=True):
            assert_chosen(kinfolk_kit, prompt, tokens)

    @needs("tiny")
    def test_drafts_change_no_token(self, kinfolk_kit: Kit) -> None:
        """With prompt lookup the same tokens come as without."""
        prompts = [kinfolk_kit.tokens[:8] * 9, kinfolk_kit.tokens[:70]]
        # Of so few tokens pairs must come again, and then something is drafted.
        few = tuple(kinfolk_kit.tokens[:3])
        with engine(kinfolk_kit, drafter="ngram", draft_tokens=6) as runtime:
            found = answers(runtime, prompts, few)
        assert sum(end.usage.drafted for _, end in found) > 0, "nothing was drafted"
        for prompt, (tokens, _) in zip(prompts, found, strict=True):
            assert_chosen(kinfolk_kit, prompt, tokens, few)

    @needs("tiny")
    def test_prompts_that_begin_alike_are_reused(self, kinfolk_kit: Kit) -> None:
        """A prompt that goes on from an earlier one starts from its state, and answers the same."""
        first, more = kinfolk_kit.tokens[:100], kinfolk_kit.random_tokens(20, seed=4)
        with engine(kinfolk_kit) as runtime:
            answers(runtime, [first], checkpoints=(90,))
            ((tokens, end),) = answers(runtime, [[*first[:90], *more]])
        assert end.usage.reused == 90
        assert_chosen(kinfolk_kit, [*first[:90], *more], tokens)


@contextmanager
def engine(kit: Kit, **options: Any) -> Iterator[Runtime]:
    settings = kit.settings(context=kit.loaded.limits.context, **options)
    with Runtime.open(kit.path, settings, kit.registry) as runtime:
        yield runtime


def answers(
    runtime: Runtime,
    prompts: list[list[int]],
    allowed: tuple[int, ...] = (),
    checkpoints: tuple[int, ...] = (),
) -> list[tuple[list[int], Finished]]:
    """The tokens of each answer, all of them ``allowed`` ones if there are any, and its end."""
    sampling = Sampling(logit_bias=tuple((token, MUCH) for token in sorted(set(allowed))))
    requests = [
        Request(f"check-{index}", tuple(prompt), ANSWER, sampling, checkpoints=checkpoints)
        for index, prompt in enumerate(prompts)
    ]
    tickets = [runtime.engine.submit(request) for request in requests]
    found = []
    for ticket in tickets:
        tokens: list[int] = []
        for event in ticket:
            if isinstance(event, Emitted):
                tokens += event.tokens
            else:
                assert event.reason is FinishReason.LENGTH, event.error
                found.append((tokens, event))
    return found


def assert_chosen(
    kit: Kit, prompt: list[int], tokens: list[int], allowed: tuple[int, ...] = ()
) -> None:
    """Every token has the largest logit after those before it, or one as large but for rounding."""
    assert len(tokens) == ANSWER
    logits = kit.linear([*prompt, *tokens])[len(prompt) - 1 : -1]
    for row, token in zip(logits, tokens, strict=True):
        assert not allowed or token in allowed
        best = float((row[list(allowed)] if allowed else row).max())
        assert float(row[token]) >= best - ROUNDING * float(row.abs().max()), (
            f"token {token} was chosen, whose logit {float(row[token]):.3f} is below {best:.3f}"
        )
