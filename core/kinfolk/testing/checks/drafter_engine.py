"""Checks of a drafter in the engine: it changes the speed of answers and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from kinfolk.engine.runtime import Runtime
from kinfolk.sched.events import Finished
from kinfolk.sched.request import Request, Sampling
from kinfolk.testing.checks.engine import answers, assert_chosen
from kinfolk.testing.drafter_kit import DrafterKit
from kinfolk.testing.marks import needs

DRAWN = 16
PROMPT_LENGTHS = (3, 64, 100)
LIMITS = (1, 5, 63)
DRAW = Sampling(temperature=0.9, seed=11)


class DrafterEngineChecks:
    """Answers with drafts are those without."""

    @needs("tiny drafter", "chain")
    @pytest.mark.parametrize("graphs", ["off", "on"])
    def test_chains_change_no_token(self, kinfolk_drafter: DrafterKit, graphs: str) -> None:
        """Several requests at once, drafted for by chains, get the tokens that the target
        chooses."""
        self._answer(kinfolk_drafter, draft_mode="chain", graphs=graphs)

    @needs("tiny drafter")
    @pytest.mark.parametrize("graphs", ["off", "on"])
    def test_trees_change_no_token(self, kinfolk_drafter: DrafterKit, graphs: str) -> None:
        """Several requests at once, drafted for by trees, get the tokens that the target
        chooses."""
        self._answer(kinfolk_drafter, draft_mode="tree", draft_budget=9, graphs=graphs)

    @needs("host")
    def test_drafts_change_no_token(self, kinfolk_drafter: DrafterKit) -> None:
        """Several requests at once get the tokens that the target chooses, and that it draws
        without drafts."""
        prompts = [kinfolk_drafter.tokens(8) * 9, kinfolk_drafter.tokens(70)]
        with self._open(kinfolk_drafter, draft_tokens=6) as runtime:
            ended = answers(runtime, prompts)
            drawn = drawn_answers(runtime, prompts)
            failures = runtime.engine.stats()["draft_failures"]
        assert not failures, f"propose failed {failures} times"
        for prompt, (tokens, _) in zip(prompts, ended, strict=True):
            assert_chosen(kinfolk_drafter.target, prompt, tokens)
        with self._open(kinfolk_drafter, draft="off") as runtime:
            assert drawn == drawn_answers(runtime, prompts)

    @needs("host")
    def test_proposals_are_tokens_within_the_limit(self, kinfolk_drafter: DrafterKit) -> None:
        """``propose`` answers at most as many tokens as it may, of the vocabulary, and leaves the
        text as it is; requests grow side by side and end."""
        drafter, vocabulary = kinfolk_drafter.host(), kinfolk_drafter.target.config.vocabulary
        texts = [kinfolk_drafter.tokens(length, seed=length) * 2 for length in PROMPT_LENGTHS]
        for step in range(3):
            for text in texts:
                for limit in LIMITS:
                    before = list(text)
                    found = drafter.propose(text, limit)
                    assert text == before, "propose changed the text of the request"
                    assert len(found) <= limit, f"{len(found)} tokens, the limit is {limit}"
                    outside = [token for token in found if not 0 <= token < vocabulary]
                    assert not outside, f"token {outside[0]} is not below {vocabulary}"
                text += kinfolk_drafter.tokens(4, seed=step)
        for text in texts:
            drafter.release(text)

    # -- helpers --------------------------------------------------------------------------------

    def _answer(self, kit: DrafterKit, **options: Any) -> None:
        prompts = [kit.tokens(length, seed=length) for length in PROMPT_LENGTHS]
        with self._open(kit, **options) as runtime:
            ended = answers(runtime, prompts)
            failures = runtime.engine.stats()["draft_failures"]
        assert not failures, f"draft failed {failures} times"
        for prompt, (tokens, end) in zip(prompts, ended, strict=True):
            assert end.usage.drafted > 0, "nothing was drafted"
            assert_chosen(kit.target, prompt, tokens)

    def _open(self, kit: DrafterKit, **options: Any) -> Runtime:
        return Runtime.open(kit.target.path, kit.settings(**options), kit.registry)


def drawn_answers(runtime: Runtime, prompts: list[list[int]]) -> list[list[int]]:
    """Tokens of answers that are drawn, each with the same seed."""
    drawn = []
    for index, prompt in enumerate(prompts):
        request = Request(f"drawn-{index}", tuple(prompt), DRAWN, DRAW)
        tokens: list[int] = []
        for event in runtime.engine.submit(request):
            if not isinstance(event, Finished):
                tokens += event.tokens
        drawn.append(tokens)
    return drawn
