"""The policy, alone and in a loaded model."""

from __future__ import annotations

import pytest
import torch
from kinfolk_policy_demo.lenient import LIKELIEST, Lenient

from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings
from kinfolk.spec.verify import REFERENCE_ACCEPT_DRAFTS, verify
from kinfolk.testing.row_sampling import RowContext, row_sampling
from kinfolk.verify_api import Draft, VerifyStep


def lane(tokens, ranks):
    """A chain of drafts; each drafted token has the given rank after the token before it."""
    logits = torch.zeros(len(tokens), 20)
    for row, rank in enumerate(ranks):
        order = [t for t in range(20) if t != tokens[row + 1]]
        order.insert(rank, tokens[row + 1])
        logits[row] = torch.tensor([-float(order.index(t)) for t in range(20)])
    rows = torch.arange(len(tokens))[None]
    parents = torch.arange(-1, len(tokens) - 1)[None]
    draft = Draft(
        torch.tensor([tokens]), parents, torch.tensor([len(tokens)]), REFERENCE_ACCEPT_DRAFTS
    )
    contexts = [RowContext(Sampling(), row) for row in range(len(tokens))]
    return VerifyStep(logits, rows), draft, row_sampling(contexts, torch.device("cpu"))


def test_likely_drafts_are_kept_and_unlikely_ones_are_not():
    asked = lane([3, 5, 7, 9], [0, LIKELIEST - 1, LIKELIEST])
    assert int(verify(*asked).n_keep) == 2
    kept = Lenient().verify(*asked)
    assert int(kept.n_keep) == 3
    assert kept.path.tolist() == [[0, 1, 2, -1]]
    # Where the drafts end, the model's own choice follows.
    assert kept.next.tolist() == [0]


def test_without_drafts_the_model_chooses():
    asked = lane([3], [])
    assert Lenient().verify(*asked).next.tolist() == verify(*asked).next.tolist()


@pytest.fixture(scope="module")
def registry():
    return Registry.discover(load_settings())


def answer(registry, policy):
    """An answer of the bundled model to a repetitive prompt, and its usage."""
    torch.set_num_threads(1)
    # Widths by cost follow the clock, so the number of steps would differ from run to run.
    settings = load_settings(
        device="cpu", draft="ngram", draft_tokens=4, draft_widths="fixed", policy=policy
    )
    with Runtime.open(None, settings, registry) as runtime:
        text = "for a in b:\n    print(a)\n" * 6 + "for"
        prompt = tuple(runtime.tokenizer.encode(text))
        tokens, end = [], None
        for event in runtime.engine.submit(Request("demo", prompt, 48)):
            if isinstance(event, Emitted):
                tokens += event.tokens
            else:
                end = event
        return runtime.loaded.hooks.asked("verify"), tokens, end.usage


def test_switched_on_it_is_asked_first_and_answers_take_fewer_steps(registry):
    _, exact, usual = answer(registry, ())
    asked, found, lenient = answer(registry, ("lenient",))
    assert asked[0].startswith("policy 'lenient' of plugin 'policy-demo'")
    assert len(found) == len(exact) == 48
    assert lenient.accepted / lenient.drafted >= usual.accepted / usual.drafted
    assert lenient.steps <= usual.steps
