"""An error while one request is prepared for a step ends that request; the step goes on.

The values of a request are checked before it is queued (tests/sched/test_request_values.py).
These tests bypass that check, or let our own code fail for one request.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from kinfolk.engine import scheduled_batch
from kinfolk.engine.history import History
from kinfolk.errors import KinfolkError, RequestError
from kinfolk.sched.request import FinishReason, Request, Sampling
from kinfolk.sched.scheduler import Scheduler
from kinfolk.spec.penalties import PenaltyState

WARM = Sampling(temperature=0.9, top_p=0.95, seed=3)
PENALISED = Sampling(temperature=0.9, presence_penalty=0.5, logit_bias=((5, 2.0),), seed=3)
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": WARM,
    "penalised": PENALISED,
    "logprobs": Sampling(logprobs=2),
}


@pytest.fixture(scope="module")
def recorded(load):
    return load(graphs="on")


@pytest.fixture(params=["eager", "recorded"])
def model(request, loaded):
    return loaded if request.param == "eager" else request.getfixturevalue("recorded")


@pytest.fixture
def beside(engine, model, text, collect, solo):
    """``beside(bad, drafter)``: the outcome of a request that goes wrong. Beside it are others with
    all kinds of sampling, and before and after it requests that use one checkpoint; all succeed."""

    def run(bad, drafter=None, sound=()):
        running = engine(drafter, model=model, max_draft=4 if drafter else 0)
        shared = tuple(text[:50])
        collect(running.submit(Request("first", (*shared, 1), 3, checkpoints=(50,))))
        others = [
            Request(f"other-{name}", tuple(text[i : i + 30]), 20, sampling)
            for i, (name, sampling) in enumerate(SAMPLINGS.items())
        ]
        tickets = [running.submit(each) for each in others[:2]]
        victim = running.submit(bad)
        tickets += [running.submit(each) for each in others[2:]]
        for each, ticket in zip(others, tickets, strict=True):
            outcome = collect(ticket)
            assert outcome.end.error is None
            assert outcome.tokens == solo(each).tokens
        after = Request("after", (*shared, 2), 6)
        outcome = collect(running.submit(after))
        assert outcome.end.usage.reused == 50, "the checkpoint was lost"
        assert outcome.tokens == solo(after).tokens
        return collect(victim)

    return run


def victim(text, sampling=WARM, count=40):
    return Request("bad", tuple(text[7:40]), count, sampling)


def spoilt(sampling, **fields):
    """``sampling`` with values that its own checks would have refused."""
    made = replace(sampling)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


@pytest.fixture
def unchecked(monkeypatch):
    """The admission check of requests is switched off."""
    monkeypatch.setattr("kinfolk.sched.scheduler.Admission.check", lambda *_: None)


# -- what clients say -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [
        spoilt(WARM, top_k=2**63),
        spoilt(WARM, top_k="many"),
        spoilt(WARM, temperature=10**400),
        spoilt(WARM, seed="1"),
        spoilt(PENALISED, presence_penalty="many"),
        spoilt(PENALISED, logit_bias=((2**63, 1.0),)),
        spoilt(PENALISED, logit_bias=((5, "many"),)),
        spoilt(PENALISED, logit_bias=((5, 10**400),)),
        spoilt(PENALISED, logit_bias=5),
        spoilt(Sampling(), logprobs="2"),
    ],
    ids=lambda sampling: "",
)
def test_a_value_that_no_check_has_seen_ends_its_own_request(beside, text, unchecked, sampling):
    outcome = beside(victim(text, sampling))
    assert outcome.end.reason is FinishReason.ERROR
    assert "Error" in outcome.end.error


@pytest.mark.parametrize("name", [None, [], {}, 5])
def test_an_id_that_is_none_is_refused_where_it_is_said(engine, name):
    with pytest.raises(KinfolkError, match="id"):
        engine().cancel(name)


# -- what our own code does for one request -------------------------------------------------------


@pytest.mark.parametrize("after", [0, 3])
def test_a_request_whose_rows_cannot_be_made_ends_alone(
    beside, solo, text, monkeypatch, caplog, after
):
    made, left = scheduled_batch.sampled_positions, itertools.count(after, -1)

    def positions(item):
        if item.request_id == "bad" and next(left) <= 0:
            raise ZeroDivisionError("no such row")
        return made(item)

    monkeypatch.setattr(scheduled_batch, "sampled_positions", positions)
    bad = victim(text)
    outcome = beside(bad)
    assert outcome.end.error == "ZeroDivisionError: no such row"
    assert outcome.tokens == solo(bad).tokens[:after]
    (record,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert "'bad'" in record.getMessage()
    assert record.exc_info is not None


def test_a_request_whose_penalties_cannot_be_entered_ends_alone(beside, text, monkeypatch):
    enter = PenaltyState.enter

    def entered(self, slot, sampling, prompt, output):
        if sampling.seed == 666:
            raise ZeroDivisionError("no such slot")
        enter(self, slot, sampling, prompt, output)

    monkeypatch.setattr(PenaltyState, "enter", entered)
    bad = victim(text, replace(PENALISED, seed=666))
    assert beside(bad).end.error == "ZeroDivisionError: no such slot"


def test_a_request_that_cannot_be_put_in_line_ends_alone(beside, text, monkeypatch):
    submit = Scheduler.submit

    def submitted(self, request, *rest):
        if request.id == "bad":
            raise ZeroDivisionError("no such line")
        submit(self, request, *rest)

    monkeypatch.setattr(Scheduler, "submit", submitted)
    outcome = beside(victim(text))
    assert outcome.end.error == "ZeroDivisionError: no such line"
    assert (outcome.tokens, outcome.end.usage.prompt) == ([], 33)


def test_an_id_whose_request_was_not_taken_can_be_used_again(engine, text, collect, monkeypatch):
    running = engine()
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "submit", lambda *_: 1 // 0)
        assert collect(running.submit(victim(text))).end.error is not None
    assert collect(running.submit(victim(text))).end.reason is FinishReason.LENGTH


def test_a_request_that_is_refused_leaves_nothing(engine, text, monkeypatch):
    running = engine()
    monkeypatch.setattr(History, "__init__", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        running.submit(victim(text))
    monkeypatch.undo()
    with pytest.raises(RequestError):
        running.submit(Request("bad", (), 1))
    running.submit(victim(text)).cancel()


# -- drafters -------------------------------------------------------------------------------------


class Moody:
    """Drafts nonsense for a request that begins like ``victim``, nothing for others."""

    def __init__(self, prompt, draft):
        self.prompt, self.draft = list(prompt), draft

    def propose(self, known, limit):
        if known[: len(self.prompt)] != self.prompt:
            return []
        if isinstance(self.draft, Exception):
            raise self.draft
        return self.draft

    def release(self, known):
        pass


@pytest.mark.parametrize(
    "draft",
    [ValueError("nothing comes to mind"), [None], ["1"], [3.5], [2**63], [-1], None, 5, [[1]]],
    ids=lambda draft: ascii(draft),
)
def test_a_drafter_that_fails_for_one_request_costs_that_one_its_drafts(beside, solo, text, draft):
    bad = victim(text)
    outcome = beside(bad, Moody(bad.prompt, draft))
    assert outcome.end.error is None
    assert outcome.tokens == solo(bad).tokens
