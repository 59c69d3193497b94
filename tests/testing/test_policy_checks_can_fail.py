"""Every check of policies fails for one that breaks its rule."""

from __future__ import annotations

import ast
import sys
import types
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from kinfolk import hookimpl
from kinfolk.descriptors import PolicySpec
from kinfolk.errors import KinfolkError
from kinfolk.plans import ExpertSwap, ExpertSwaps, Placement
from kinfolk.registry import Registry
from kinfolk.score_api import KEEP, Keep, Scores
from kinfolk.testing.conformance import PolicyConformance
from kinfolk.testing.facts import policy_facts_of
from kinfolk.testing.policy_kit import PolicyKit

FIT = "test_scores_are_one_finite_number_a_chunk"
EQUAL = "test_equal_queries_have_equal_scores"
ALONE = "test_queries_are_left_alone"
ROUNDS = "test_long_requests_lose_no_round"
SCORES = (FIT, EQUAL, ALONE, ROUNDS)
NUMBERS = count()


class Scorer:
    """Chunks are worth what a function of the query says."""

    def __init__(self, told):
        self.told = told

    @hookimpl
    def score_chunks(self, query):
        return self.told(query)


@pytest.fixture(scope="module")
def policy_kit(tmp_path_factory):
    """``policy_kit(create)``: the kit on a policy that ``create`` makes; the tiny model is written
    and loaded once."""
    first = []

    def make(create, name="told"):
        import kinfolk_laguna.plugin
        import kinfolk_qwen35.plugin
        from kinfolk.hookspecs import API

        module = types.ModuleType(f"changed_policy_{next(NUMBERS)}")
        sys.modules[module.__name__] = module
        module.create = create
        spec = PolicySpec(name, f"{module.__name__}:create")

        @hookimpl
        def register_policies():
            return [spec]

        module.KINFOLK_API, module.register_policies = API, register_policies
        registry = Registry.build(
            {
                "policy-demo": module,
                "qwen35": kinfolk_qwen35.plugin,
                "laguna": kinfolk_laguna.plugin,
            }
        )
        kit = PolicyKit(name, tmp_path_factory.mktemp("policy"), registry)
        if first:
            kit.__dict__["model"] = first[0]
        first.append(kit.model)
        return kit

    return make


@pytest.fixture
def scorer_kit(policy_kit):
    """``scorer_kit(told)``: the kit on a policy that scores by a function of the query."""
    return lambda told: policy_kit(lambda info: Scorer(told))


def run(kit, name):
    getattr(PolicyConformance(), name)(kinfolk_policy=kit)


def fails(kit, name, message=None):
    """The check fails for the policy, and says why."""
    with pytest.raises((AssertionError, KinfolkError), match=message):
        run(kit, name)


def by_number(query):
    return Scores(torch.arange(query.chunks, dtype=torch.float32))


# -- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told", [by_number, lambda query: KEEP, lambda query: None], ids=["scores", "keep", "none"]
)
def test_sound_scorers_pass(scorer_kit, told):
    kit = scorer_kit(told)
    other = {"test_discovery_loads_nothing_heavy", PLACED}  # the module is no file; no placement
    for name in (each for each in dir(PolicyConformance) if each.startswith("test_")):
        if name not in other:
            run(kit, name)


def one_too_many(query):
    return Scores(torch.zeros(query.chunks + 1))


def of_all_tokens(query):
    return Scores(torch.zeros(-(-len(query.tokens) // 64)))


def doubles(query):
    return Scores(torch.zeros(query.chunks, dtype=torch.float64))


def a_column(query):
    return Scores(torch.zeros(query.chunks, 1))


def a_list(query):
    return [0.0] * query.chunks


def the_class(query):
    return Keep


def not_a_number(query):
    return Scores(torch.zeros(query.chunks) / query.resident.sum() * float("nan"))


def endless(query):
    scores = torch.zeros(query.chunks)
    scores[-1] = float("inf")
    return Scores(scores)


def only_after_prompts(query):
    return {"prompt": by_number}[query.reason](query)


def only_long_ones(query):
    assert query.chunks >= 9, "too few"
    return by_number(query)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (one_too_many, "3 scores for 2 chunks"),
        (of_all_tokens, "3 scores for 2 chunks"),
        (doubles, r"Scores\.values is of torch\.float64"),
        (a_column, r"Scores\.values is \[2, 1\]"),
        (a_list, "which is no"),
        (the_class, "which is no"),
        (not_a_number, "chunk 0 of 2 is nan: it is not finite"),
        (endless, "chunk 1 of 2 is inf"),
        (only_after_prompts, "failed in hook score_chunks: KeyError"),
        (only_long_ones, "failed in hook score_chunks: AssertionError"),
    ],
)
def test_scores_that_are_wrong_are_found(scorer_kit, told, message):
    fails(scorer_kit(told), FIT, message)


def random_numbers(info):
    return Scorer(lambda query: Scores(torch.rand(query.chunks)))


def running_mean(info):
    """What was asked before decides too."""
    seen = []

    def told(query):
        seen.append(query.length)
        return Scores(torch.full((query.chunks,), sum(seen) / len(seen)))

    return Scorer(told)


def keeps_at_first(info):
    answers = iter([KEEP])
    return Scorer(lambda query: next(answers, None) or by_number(query))


@pytest.mark.parametrize("create", [random_numbers, running_mean, keeps_at_first])
def test_scores_that_depend_on_more_than_the_query_are_found(policy_kit, create):
    kit = policy_kit(create)
    fails(kit, EQUAL, "other scores for the same query")
    for name in (FIT, ALONE, ROUNDS):
        run(kit, name)


def drops_the_prompt(query):
    query.tokens.clear()
    return by_number(query)


def marks_all(query):
    query.resident[:] = True
    return by_number(query)


def forgets_when(query):
    query.last_used[:] = 0
    return by_number(query)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (drops_the_prompt, "changed the text of the request"),
        (marks_all, "changed resident"),
        (forgets_when, "changed last_used"),
    ],
)
def test_a_query_that_is_changed_is_found(scorer_kit, told, message):
    fails(scorer_kit(told), ALONE, message)


def fails_in_answers(query):
    """Right for as many chunks as the checks without an engine ask for."""
    if query.reason == "interval" and query.chunks == 11:
        raise RuntimeError("no idea")
    return by_number(query)


def fails_after_prefixes(query):
    if query.reason == "prefix" and query.length == 640:
        return Scores(torch.full((query.chunks,), float("nan")))
    return by_number(query)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (fails_in_answers, "rounds failed: .*no idea"),
        (fails_after_prefixes, "1 rounds failed: .*not a finite number"),
    ],
)
def test_rounds_that_fail_only_in_the_engine_are_found(scorer_kit, told, message):
    kit = scorer_kit(told)
    for name in (FIT, EQUAL, ALONE):
        run(kit, name)
    fails(kit, ROUNDS, message)


# -- registration ---------------------------------------------------------------------------------


class Silent:
    """Implements no hook."""


def test_a_policy_without_hooks_is_found(policy_kit):
    kit = policy_kit(lambda info: Silent())
    fails(kit, "test_policy_answers_a_hook", "implements no model hook")
    assert policy_facts_of(kit).missing["scores"] == "the policy does not answer score_chunks"


class Misspelt:
    @hookimpl
    def score_chunk(self, query):
        return None


def test_a_misspelt_hook_is_found(policy_kit):
    kit = policy_kit(lambda info: Misspelt())
    fails(kit, "test_policy_answers_a_hook", "score_chunk")
    assert "cannot be used" in policy_facts_of(kit).missing["scores"]


def test_one_object_for_all_models_is_found(policy_kit):
    only = Scorer(by_number)
    fails(policy_kit(lambda info: only), "test_each_model_has_a_policy_of_its_own")


def test_a_plugin_that_registers_a_policy_twice_is_found(scorer_kit, monkeypatch):
    kit = scorer_kit(by_number)
    module, spec = sys.modules[kit.record.module], kit.provided.value
    monkeypatch.setattr(module, "register_policies", lambda: [spec, spec])
    fails(kit, "test_policy_is_registered")


def test_a_policy_that_imports_much_to_register_is_found(scorer_kit, tmp_path, monkeypatch):
    kit = scorer_kit(by_number)
    (tmp_path / "heavy_policy.py").write_text(
        "import safetensors\n\n\ndef register_policies():\n    ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    kit.__dict__["record"] = replace(kit.record, module="heavy_policy")
    fails(kit, "test_discovery_loads_nothing_heavy", "imports safetensors at discovery")


class Verifies:
    """Keeps what a function of the step and the draft says."""

    def __init__(self, told):
        self.told = told

    @hookimpl
    def verify(self, step, draft, sampling):
        return self.told(step, draft)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (lambda step, draft: 5, "which is no"),
        (lambda step, draft: draft.parents[99], "failed in hook verify: IndexError"),
    ],
)
def test_a_policy_that_verifies_wrongly_is_found(policy_kit, told, message):
    fails(policy_kit(lambda info: Verifies(told)), "test_drafted_requests_end_well", message)


def test_checks_of_hooks_that_a_policy_does_not_answer_do_not_apply(policy_kit):
    verifies = policy_kit(lambda info: Verifies(lambda step, draft: None))
    run(verifies, "test_drafted_requests_end_well")
    others = {"scores", "verify", "placement", "swaps"}
    assert set(policy_facts_of(verifies).missing) == others - {"verify"}
    scores = policy_kit(lambda info: Scorer(by_number))
    assert set(policy_facts_of(scores).missing) == others - {"scores"}


# -- experts --------------------------------------------------------------------------------------


class Places:
    """Puts experts where a function of the statistics and the budget says."""

    def __init__(self, told):
        self.told = told

    @hookimpl
    def place_experts(self, stats, budget):
        return self.told(stats, budget)


def the_last_ones(stats, budget):
    """The last experts of each layer, as many as fit into its share."""
    if budget >= sum(n * size for n, size in zip(stats.layers, stats.record_bytes, strict=True)):
        return Placement(tuple(tuple(range(n)) for n in stats.layers))
    bays, left = [], budget
    for experts, size in zip(stats.layers, stats.record_bytes, strict=True):
        fit = min(experts, left // size) if size else experts
        bays.append(tuple(range(experts - fit, experts)))
        left -= fit * size
    return Placement(tuple(bays))


def one_each(stats, budget):
    """The first expert of each layer, if there are bytes for it or not."""
    return Placement(tuple((0,) if experts else () for experts in stats.layers))


def by_counts(stats, budget):
    """Fails without a profile."""
    assert stats.counts is not None
    return the_last_ones(stats, budget)


PLACED = "test_experts_are_placed_in_any_budget"
SAME = "test_answers_do_not_depend_on_its_bays"
SWAPPED = "test_swaps_change_no_token"


def test_a_sound_placement_passes(policy_kit):
    kit = policy_kit(lambda info: Places(the_last_ones))
    for counted in (False, True):
        getattr(PolicyConformance(), PLACED)(kinfolk_policy=kit, counted=counted)
    run(kit, SAME)


@pytest.mark.parametrize(
    ("told", "message"), [(one_each, "the budget is 0"), (by_counts, "AssertionError")]
)
def test_a_placement_that_does_not_fit_is_found(policy_kit, told, message):
    kit = policy_kit(lambda info: Places(told))
    kit.__dict__["mixture_hooks"] = kit.alone()  # the model is not opened with it
    with pytest.raises(KinfolkError, match=message):
        getattr(PolicyConformance(), PLACED)(kinfolk_policy=kit, counted=False)


def test_one_that_cannot_open_a_model_is_found(policy_kit):
    fails(policy_kit(lambda info: Places(by_counts)), SAME, "AssertionError")


class Swaps:
    """Swaps what a function of the residency says."""

    def __init__(self, told):
        self.told = told

    @hookimpl
    def swap_experts(self, use, residency):
        return ExpertSwaps(tuple(self.told(residency)))


def the_first_far_one(residency):
    for layer, bays in enumerate(residency.bays):
        far = [e for e in range(residency.experts[layer]) if e not in bays]
        if far and bays:
            yield ExpertSwap(layer, far[0], 0)


def a_bay_that_is_not_there(residency):
    yield ExpertSwap(0, 0, 10**6)


def test_sound_swaps_pass(policy_kit):
    run(policy_kit(lambda info: Swaps(the_first_far_one)), SWAPPED)


def test_swaps_that_cannot_be_made_are_found(policy_kit):
    kit = policy_kit(lambda info: Swaps(a_bay_that_is_not_there))
    fails(kit, SWAPPED, "swap_experts failed 2 times|swap_experts failed 3 times")


def test_there_is_a_policy_that_fails_for_every_check():
    """Every check of policies is named above as one that fails."""
    tree = ast.parse(Path(__file__).read_text())
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    checks = {name for name in dir(PolicyConformance) if name.startswith("test_")}
    assert len(checks) >= 11
    assert checks - words == set()
    assert set(SCORES) <= checks
