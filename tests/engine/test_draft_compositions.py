"""Settings of drafting two by two, opened as a command opens them: a drafter with weights, n-gram
behind or before it, widths, modes, restored prefixes, captured steps. Greedy text is that without
drafts."""

from __future__ import annotations

import oracle_drafter
import pytest

from kinfolk.engine.runtime import Runtime
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings
from kinfolk.spec.dflash import tiny

LENGTHS = (63, 64, 65)
GREEDY = Sampling(logit_bias=tuple((token, 60.0) for token in (11, 12, 13, 14)))
"""Greedy answers of random weights do not repeat themselves; with few tokens to choose they do."""

PAIRS = [
    ("oracle,ngram", "auto", "confidence", "on"),
    ("oracle,ngram", "tree", "cost", "off"),
    ("oracle,ngram", "chain", "fixed", "on"),
    ("ngram,oracle", "auto", "cost", "on"),
    ("ngram,oracle", "chain", "confidence", "off"),
    ("ngram,oracle", "tree", "fixed", "on"),
    ("oracle", "auto", "fixed", "off"),
    ("oracle", "chain", "confidence", "on"),
    ("dflash,ngram", "auto", "confidence", "on"),
    ("dflash,ngram", "tree", "fixed", "off"),
    ("auto", "auto", "cost", "on"),
    ("auto", "chain", "confidence", "off"),
]
"""Each value meets most of the other columns. --draft-widths confidence is for no trees."""


def conversations(text):
    """Two requests for each length: a prompt with a checkpoint at its end, and one that begins
    with the same tokens."""
    for n in LENGTHS:
        prompt = tuple(text[n : 2 * n - 16]) + (11, 12, 13, 14, 12, 11, 14, 13) * 2
        assert len(prompt) == n
        first = Request(f"first {n}", (*prompt, 9), 50, GREEDY, checkpoints=(n,))
        yield first, Request(f"second {n}", (*prompt, 11, 12), 50, GREEDY)


@pytest.fixture(scope="module")
def opened(cases, drafters):
    def open_case(**options):
        values = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 4, **options}
        return Runtime.open(cases / "qwen35.gguf", load_settings(**values), drafters)

    return open_case


@pytest.fixture(scope="module")
def expected(opened, text, collect):
    """The tokens without drafts, of whole prompts."""
    with opened(draft="off", checkpoints=0) as plain:
        return {
            request.id: collect(plain.engine.submit(request)).tokens
            for pair in conversations(text)
            for request in pair
        }


@pytest.fixture(scope="module")
def files(cases, text, expected, tmp_path_factory):
    """A drafter that is right but for every sixth token, and a DFlash drafter of random weights."""
    folder = tmp_path_factory.mktemp("drafters")
    futures = [[*r.prompt, *expected[r.id]] for pair in conversations(text) for r in pair]
    right = oracle_drafter.write(folder / "right.gguf", futures, depth=6, columns=2, chain=True,
                                 wrong=6)  # fmt: skip
    tiny.write(cases / "qwen35.gguf", folder / "random.gguf")
    return {"oracle": right, "dflash": folder / "random.gguf", "auto": right}


@pytest.mark.parametrize(("draft", "mode", "widths", "graphs"), PAIRS, ids=map("/".join, PAIRS))
def test_greedy_text_is_that_without_drafts(
    draft, mode, widths, graphs, opened, text, collect, expected, files
):
    kind = next(name for name in draft.split(",") if name in files)
    options = {"draft": draft, "draft_mode": mode, "draft_widths": widths, "graphs": graphs}
    options |= {"draft_model": files[kind], "draft_budget": 12}
    with opened(**options) as runtime:
        running, used = runtime.engine, []
        for first, second in conversations(text):
            used.append(collect(running.submit(first)))
            assert used[-1].tokens == expected[first.id]
            restored, beside = running.submit(second), running.submit(first)
            for ticket, request in ((restored, second), (beside, first)):
                used.append(collect(ticket))
                assert used[-1].tokens == expected[request.id]
                assert used[-1].end.usage.reused >= len(first.prompt) - 1
        stats = running.stats()
        running.check_integrity()
    assert stats["draft_failures"] == 0
    assert sum(outcome.end.usage.drafted for outcome in used) > 0
    if kind != "dflash":
        assert sum(outcome.end.usage.accepted for outcome in used) > 0
