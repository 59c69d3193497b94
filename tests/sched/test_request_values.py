"""The allowed values of a request; any other is refused by name before it is queued."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kinfolk.errors import KinfolkError, RequestError, SettingsError
from kinfolk.sched.acceptance import check_request
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.paging import Paging
from kinfolk.sched.request import Request, Sampling

HOSTILE = [
    2**63,
    2**64,
    -(2**63),
    10**400,
    10**5000,
    -(10**5000),
    math.nan,
    math.inf,
    -math.inf,
    "1",
    "",
    True,
    b"1",
    [],
    (1,),
    {},
    object(),
    1j,
]
NUMBERS = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
]
VOCABULARY = 12
LIMITS = SchedulerLimits(slots=2, context=100, vocabulary=VOCABULARY)
ROOM = SimpleNamespace(fits_ever=lambda positions, resident: True)
GOOD = Request("a", (1, 2), 3)


def kind_of(value):
    """The type of a value, for test ids: some values are too long to be written."""
    return type(value).__name__


@pytest.mark.parametrize("value", HOSTILE, ids=kind_of)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_sampling_cannot_use_is_refused_by_name(name, value):
    with pytest.raises(SettingsError, match=name) as caught:
        Sampling(**{name: value})
    assert caught.value.field == name
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"])
def test_nothing_is_no_number(name):
    with pytest.raises(SettingsError, match=f"{name}.*None"):
        Sampling(**{name: None})


def test_a_penalty_too_small_to_divide_by_is_refused():
    """As float32 it would be 0, and logits infinite."""
    with pytest.raises(SettingsError, match="repetition_penalty"):
        Sampling(repetition_penalty=1e-300)


@pytest.mark.parametrize("seed", [math.nan, 1.5, "1", None, True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(SettingsError, match="seed"):
        Sampling(seed=seed)


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64, -(10**5000)], ids=kind_of)
def test_any_whole_number_is_a_seed(seed):
    assert Sampling(seed=seed).seed == seed


@pytest.mark.parametrize(
    "bias",
    [
        5,
        "55",
        {3: 1.0},
        ((3,),),
        ((3, 1.0, 2),),
        ((3, None),),
        ((3, "1"),),
        ((3, True),),
        ((3, math.nan),),
        ((3, math.inf),),
        ((3, 101),),
        ((3, -100.5),),
        ((3, 10**400),),
        ((-1, 1.0),),
        ((3.0, 1.0),),
        (("3", 1.0),),
        ((True, 1.0),),
    ],
    ids=str,
)
def test_a_bias_is_a_token_and_a_number(bias):
    with pytest.raises(SettingsError, match=r"logit_bias") as caught:
        Sampling(logit_bias=bias)
    assert caught.value.field == "logit_bias"


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 5},
        {"id": None},
        {"id": []},
        {"prompt": [1, 2]},
        {"prompt": "ab"},
        {"prompt": None},
        {"prompt": ()},
        {"prompt": (1, None)},
        {"prompt": (1, "2")},
        {"prompt": (1, 2.0)},
        {"prompt": (1, True)},
        {"prompt": (1, [])},
        {"prompt": (1, -1)},
        {"prompt": (1, VOCABULARY)},
        {"prompt": (1, 2**63)},
        {"prompt": (1, 10**5000)},
        {"max_new": 0},
        {"max_new": -(10**5000)},
        {"max_new": 10**5000},
        {"max_new": math.nan},
        {"max_new": 1.0},
        {"max_new": "1"},
        {"max_new": None},
        {"sampling": None},
        {"sampling": {"temperature": 1}},
        {"stop": [1]},
        {"stop": None},
        {"stop": frozenset({"1"})},
        {"stop": frozenset({math.nan})},
        {"checkpoints": [1]},
        {"checkpoints": None},
        {"checkpoints": (0,)},
        {"checkpoints": (3,)},
        {"checkpoints": (10**5000,)},
        {"checkpoints": (math.nan,)},
        {"checkpoints": ("1",)},
        {"priority": math.nan},
        {"priority": None},
        {"priority": "1"},
        {"quantum": 0},
        {"quantum": math.nan},
        {"quantum": "1"},
    ],
    ids=lambda fields: next(f"{name}: {kind_of(value)}" for name, value in fields.items()),
)
def test_a_request_that_could_not_run_is_refused_by_name(fields):
    with pytest.raises(RequestError, match=next(iter(fields))) as caught:
        check_request(replace(GOOD, **fields), LIMITS, ROOM, Paging(None, ROOM))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("request_", [None, "a", {"id": "a"}, Sampling()])
def test_what_is_no_request_is_refused(request_):
    with pytest.raises(RequestError, match="Request"):
        check_request(request_, LIMITS, ROOM, Paging(None, ROOM))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"priority": -(10**5000)},
        {"priority": 2**64},
        {"stop": frozenset({3})},
        {"stop": {3}},
        {"checkpoints": (1, 2)},
        {"sampling": Sampling(logit_bias=((VOCABULARY - 1, 1.0),))},
    ],
    ids=lambda fields: "".join(fields),
)
def test_what_can_run_is_let_through(fields):
    check_request(replace(GOOD, **fields), LIMITS, ROOM, Paging(None, ROOM))


def forbidding(*tokens, bias=-math.inf, **rest):
    return Sampling(logit_bias=tuple((token, bias) for token in tokens), **rest)


@pytest.mark.parametrize("token", [VOCABULARY, 2**63, 10**5000], ids=kind_of)
def test_a_bias_of_a_token_that_does_not_exist_is_refused(token):
    request = replace(GOOD, sampling=forbidding(token))
    with pytest.raises(KinfolkError, match=r"logit_bias.*vocabulary of 12"):
        check_request(request, LIMITS, ROOM, Paging(None, ROOM))


@pytest.mark.parametrize(
    "sampling",
    [
        forbidding(*range(VOCABULARY)),
        forbidding(*range(VOCABULARY), bias=-100),
        forbidding(*range(VOCABULARY), temperature=1, top_k=3),
        Sampling(
            logit_bias=tuple((token, (-100, -math.inf)[token % 2]) for token in range(VOCABULARY))
        ),
    ],
    ids=["never", "-100", "sampled", "both"],
)
def test_a_bias_that_forbids_every_token_is_refused(sampling):
    with pytest.raises(RequestError, match=r"logit_bias.*all 12 tokens") as caught:
        check_request(replace(GOOD, sampling=sampling), LIMITS, ROOM, Paging(None, ROOM))
    assert caught.value.field == "logit_bias"


@pytest.mark.parametrize(
    "sampling",
    [
        forbidding(*range(1, VOCABULARY)),
        forbidding(*range(VOCABULARY), bias=-99),
        # Eleven tokens in twelve entries.
        forbidding(*range(VOCABULARY - 1), 3),
    ],
    ids=["one is left", "all are only less likely", "one twice"],
)
def test_a_bias_that_leaves_a_token_is_let_through(sampling):
    check_request(replace(GOOD, sampling=sampling), LIMITS, ROOM, Paging(None, ROOM))
