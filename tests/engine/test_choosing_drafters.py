"""Which drafters draft for a model: ``--draft auto``, ``off`` or names."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace

import oracle_drafter
import pytest

from kinfolk.engine.preparing import prepare_model
from kinfolk.engine.preparing_drafters import HOST_DRAFT, draft_line, files_beside
from kinfolk.errors import SettingsError
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings


@pytest.fixture(scope="session")
def every_drafter(drafters):
    """The registry with the drafter of the tests, and one that reads the model's own file."""
    own = oracle_drafter.spec(
        name="within",
        architectures=(),
        prepare="oracle_drafter:prepare_own",
        build="oracle_drafter:OracleDrafter",
    )
    return replace(drafters, drafters={**drafters.drafters, "within": own})


@pytest.fixture
def model(tmp_path, cases):
    return shutil.copy(cases / "qwen35.gguf", tmp_path / "model.gguf")


@pytest.fixture
def chosen(model, every_drafter):
    """``chosen(**settings)``: (name and file of the drafter with weights, names of the host's)."""

    def ask(within=False, **settings):
        known = every_drafter
        if not within:
            known = replace(known, drafters=without(known, "within"))
        options = {"device": "cpu", "context": 256, "slots": 2, **settings}
        ready = prepare_model(model, load_settings(**options), known)
        found = ready.drafters.with_weights
        name = None if found is None else (found.spec.name, found.file.path.name)
        return name, [one.value.name for one in ready.drafters.hosts]

    return ask


def without(registry, *names):
    return {name: each for name, each in registry.drafters.items() if name not in names}


def write(path, **keys):
    return oracle_drafter.write(path, [[1, 2, 3]], **keys)


def test_by_itself_a_model_is_drafted_for_by_prompt_lookup(chosen):
    assert chosen() == (None, ["ngram"])


@pytest.mark.parametrize("name", ["model-draft.gguf", "model.dflash.gguf"])
def test_a_file_beside_the_model_drafts_for_it(chosen, model, name):
    write(model.with_name(name))
    assert chosen() == (("oracle", name), ["ngram"])


def test_the_files_of_a_split_model_are_named_after_the_whole(tmp_path):
    write(tmp_path / "big-draft.gguf")
    first = tmp_path / "big-00001-of-00003.gguf"
    assert [path.name for path in files_beside(first)] == ["big-draft.gguf"]


def test_a_drafter_in_the_models_own_file_is_used(chosen):
    assert chosen(within=True) == (("within", "model.gguf"), ["ngram"])


def test_a_named_file_comes_before_one_beside_the_model(chosen, model, tmp_path):
    write(model.with_name("model-draft.gguf"))
    other = write(tmp_path / "other.gguf")
    assert chosen(draft_model=other) == (("oracle", "other.gguf"), ["ngram"])


def test_a_file_beside_that_does_not_fit_is_only_warned_of(chosen, model, caplog):
    write(model.with_name("model-draft.gguf"), feature=61)
    with caplog.at_level(logging.WARNING):
        assert chosen() == (None, ["ngram"])
    assert "model-draft.gguf" in caplog.text
    assert "layer 61, the model has" in caplog.text


WRONG = [
    ({"draft_tokens": 20}, "--draft-tokens 20: .* proposes at most 15 tokens"),
    ({"draft_mode": "tree", "draft_widths": "confidence"}, "--draft-widths confidence is for"),
    ({"draft_option": "x=1"}, "--draft-option x=1: drafter 'oracle' has no options"),
]


@pytest.mark.parametrize("draft", ["auto", "oracle", "oracle,ngram", "oracle,within"])
@pytest.mark.parametrize(("settings", "words"), WRONG)
def test_a_flag_that_does_not_suit_the_drafter_that_is_found_is_an_error(
    chosen, model, draft, settings, words
):
    write(model.with_name("model-draft.gguf"))
    assert chosen(within=True, draft=draft)[0] == ("oracle", "model-draft.gguf")
    with pytest.raises(SettingsError, match=words):
        chosen(within=True, draft=draft, **settings)


def test_so_is_one_that_does_not_suit_the_drafter_in_the_models_own_file(chosen):
    with pytest.raises(SettingsError, match=r"--draft-tokens 20: .* proposes at most 4 tokens"):
        chosen(within=True, draft_tokens=20)


def test_what_nobody_asked_for_is_only_warned_of(chosen, model, caplog):
    """Defaults of a command are no flags of the user."""
    write(model.with_name("model-draft.gguf"))
    with caplog.at_level(logging.WARNING):
        defaults = {"draft_mode": "tree", "draft_widths": "confidence"}
        assert chosen(within=True, defaults=defaults) == (None, ["ngram"])
    assert "model-draft.gguf does not draft for this model: --draft-widths" in caplog.text
    assert "model.gguf does not draft for this model: --draft-widths" in caplog.text


@pytest.mark.parametrize("draft", ["auto", "oracle", "oracle,ngram"])
def test_a_drafter_that_makes_its_own_trees_has_no_chains(chosen, model, draft):
    write(model.with_name("model-draft.gguf"), own_trees=True)
    with pytest.raises(SettingsError, match=r"--draft-mode chain: .*trees only; leave it out, or"):
        chosen(draft=draft, draft_mode="chain")
    for mode in ("auto", "tree"):
        assert chosen(draft=draft, draft_mode=mode)[0] == ("oracle", "model-draft.gguf")


def test_off_is_none_at_all(chosen, model):
    write(model.with_name("model-draft.gguf"))
    assert chosen(draft="off") == (None, [])
    assert chosen(draft="off", draft_model=model.with_name("model-draft.gguf")) == (None, [])


def test_batch_invariance_turns_auto_off_and_refuses_names(chosen, tmp_path):
    assert chosen(batch_invariant=True, graphs="on") == (None, [])
    for asked in ({"draft": "ngram"}, {"draft_model": write(tmp_path / "d.gguf")}):
        with pytest.raises(SettingsError, match=r"--draft.*nothing can be drafted"):
            chosen(batch_invariant=True, graphs="on", **asked)


def test_names_are_tried_in_order(chosen, model, caplog):
    assert chosen(draft="ngram") == (None, ["ngram"])
    assert chosen(draft="random,ngram") == (None, ["random", "ngram"])
    with caplog.at_level(logging.WARNING):
        assert chosen(draft="oracle,ngram") == (None, ["ngram"])
    assert "holds no drafter 'oracle'" in caplog.text
    write(model.with_name("model-draft.gguf"))
    beside = ("oracle", "model-draft.gguf")
    assert chosen(draft="oracle,ngram") == (beside, ["ngram"])
    assert chosen(draft="oracle") == (beside, [])
    assert chosen(within=True, draft="within,oracle") == (("within", "model.gguf"), [])


@pytest.mark.parametrize("value", ["auto,ngram", "off,ngram", "", "ngram,ngram"])
def test_words_that_are_no_names_stand_alone(value):
    with pytest.raises(SettingsError, match=r"--draft: "):
        load_settings(draft=value)


def test_a_chain_and_a_tree_are_kept_at_hand_where_cost_decides(model, every_drafter, tmp_path):
    path = write(tmp_path / "d.gguf", columns=3, depth=7)

    def shape(**settings):
        options = {"device": "cpu", "context": 256, "draft_model": path, **settings}
        found = prepare_model(model, load_settings(**options), every_drafter).drafters.with_weights
        return found.chain, found.tree

    assert shape() == (7, 32)
    assert shape(draft_tokens=4, draft_budget=9) == (4, 9)
    assert shape(draft_mode="tree") == (0, 32)
    assert shape(draft_mode="chain") == (7, 0)
    assert shape(draft_widths="fixed") == shape(draft_width=3) == (7, 0)
    with pytest.raises(SettingsError, match="confidence is for chains"):
        shape(draft_mode="tree", draft_widths="confidence")


def test_the_report_says_what_drafts(model, every_drafter):
    write(model.with_name("model-draft.gguf"), columns=3, depth=7)
    options = {"device": "cpu", "context": 256}
    ready = prepare_model(model, load_settings(**options), every_drafter)
    weighted, host = ready.drafters.report()
    assert (weighted["chain"], weighted["tree"], weighted["bytes"]) == (7, 32, 12)
    assert (host["name"], host["chain"]) == ("ngram", HOST_DRAFT)
    assert draft_line(host).endswith(": chains of up to 15 tokens")
    assert draft_line(weighted).startswith(
        "oracle of the tests: chains of up to 7 or trees of up to 32"
    )


# -- two drafters in one engine -------------------------------------------------------------------


@pytest.fixture
def load_with_drafter(load, every_drafter, tmp_path):
    def open_model(futures, *, settings=None, **keys):
        path = oracle_drafter.write(tmp_path / "draft.gguf", futures, **keys)
        return load(registry=every_drafter, draft_model=path, **(settings or {}))

    return open_model


@pytest.mark.parametrize("graphs", ["off", "on"])
@pytest.mark.parametrize("widths", ["fixed", "confidence", "cost"])
def test_text_with_both_drafters_is_that_without(
    engine, text, solo, collect, load_with_drafter, widths, graphs
):
    """The drafter with weights is wrong every third token; prompt lookup finds the repetition."""
    from kinfolk.spec.ngram import PromptLookup

    requests = [
        Request(f"r{length}", (*text[:length], *text[:length]), 24) for length in (20, 31, 32, 33)
    ]
    futures = [[*request.prompt, *solo(request).tokens] for request in requests]
    mode = {} if widths == "cost" else {"draft_mode": "chain"}
    settings = {"draft_widths": widths, "draft_budget": 9, "graphs": graphs, **mode}
    loaded = load_with_drafter(futures, depth=6, columns=2, wrong=3, settings=settings)
    running = engine(PromptLookup(), model=loaded, widths=widths, max_draft=9)
    outcomes = [collect(ticket) for ticket in [running.submit(each) for each in requests]]
    for request, outcome in zip(requests, outcomes, strict=True):
        assert outcome.tokens == solo(request).tokens
    assert running.stats()["draft_failures"] == 0
    if widths != "cost":
        assert all(outcome.end.usage.drafted > 0 for outcome in outcomes)


@pytest.mark.parametrize("method", ["extend", "commit"])
def test_a_drafter_that_cannot_write_its_state_is_left_out(
    engine, text, solo, collect, load_with_drafter, method, caplog
):
    requests = [Request(f"r{i}", tuple(text[: 20 + 9 * i]), 16) for i in range(2)]
    futures = [[*request.prompt, *solo(request).tokens] for request in requests]
    loaded = load_with_drafter(futures, settings={"draft_mode": "chain"})

    class Broken(type(loaded.drafter.drafter)):
        def __init__(self, other):
            self.__dict__.update(other.__dict__)

    def fails(self, *arguments):
        raise RuntimeError("no room")

    setattr(Broken, method, fails)
    broken = replace(loaded.drafter, drafter=Broken(loaded.drafter.drafter))
    running = engine(model=replace(loaded, drafter=broken))
    for request in requests:
        assert collect(running.submit(request)).tokens == solo(request).tokens
    assert running.stats()["draft_failures"] >= 1
    assert caplog.text.count("RuntimeError: no room") == 1
