"""The model card of a file: from its family or from a file beside it."""

from __future__ import annotations

import json

import pytest

from kinfolk.descriptors import FamilyBase, ModelCard, SamplingDefaults
from kinfolk.engine.cards import find_card, normalised
from kinfolk.errors import ModelFormatError
from kinfolk.gguf.metadata import Metadata

KNOWN = ModelCard("Some-Model 27B", SamplingDefaults(temperature=0.6))


class Family(FamilyBase):
    def model_cards(self):
        return (ModelCard("other"), KNOWN)


@pytest.fixture
def card(tmp_path):
    """``card(metadata, beside)``: the card found for ``model.gguf`` with this beside it."""

    def find(metadata, beside=None):
        if beside is not None:
            text = beside if isinstance(beside, str) else json.dumps(beside)
            (tmp_path / "model.card.json").write_text(text)
        path = tmp_path / "model.gguf"
        return find_card(path, Metadata.from_dict(metadata, path), Family())

    return find


@pytest.mark.parametrize("name", ["Some-Model 27B", "some model_27b", "SOME-MODEL-27B"])
def test_a_family_knows_a_model_by_its_normalised_name(card, name):
    assert card({"general.name": name}) is KNOWN


@pytest.mark.parametrize("metadata", [{"general.name": "some-model-27b-instruct"}, {}])
def test_nobody_may_know_it(card, metadata):
    assert card(metadata) is None


def test_a_card_beside_the_file_wins(card):
    beside = {"name": "mine", "sampling": {"temperature": 0.1, "top_k": 5}, "chat": False}
    found = card({"general.name": KNOWN.name, "general.sampling.temp": 0.9}, beside)
    assert found == ModelCard("mine", SamplingDefaults(temperature=0.1, top_k=5), chat=False)


def test_the_family_wins_over_the_file(card):
    assert card({"general.name": KNOWN.name, "general.sampling.temp": 0.9}) is KNOWN


def test_a_file_may_recommend_sampling(card):
    metadata = {
        "general.name": "Unheard Of",
        "general.sampling.temp": 0.25,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.5,
        "general.sampling.min_p": 0.125,
    }
    expected = SamplingDefaults(temperature=0.25, top_k=20, top_p=0.5, min_p=0.125)
    assert card(metadata) == ModelCard("unheard-of", expected)


def test_minus_one_choices_is_another_word_for_no_limit(card):
    assert card({"general.sampling.top_k": -1}).sampling.top_k == 0


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 101.0, 2**31, "warm"])
@pytest.mark.parametrize("name", ["temp", "top_k", "top_p", "min_p"])
def test_what_a_file_recommends_is_usable_or_refused_by_key(card, name, value):
    key = f"general.sampling.{name}"
    if (name, value) in (("temp", 0.0), ("min_p", 0.0)):
        assert card({key: value}) is not None
        return
    with pytest.raises(ModelFormatError, match=rf"model.gguf: key '{key}' is ") as refused:
        card({key: value})
    assert refused.value.key == key


@pytest.mark.parametrize(
    ("beside", "part"),
    [
        ("{", "Expecting property name"),
        ("[]", "must be an object"),
        ({}, "name: is missing"),
        ({"name": "a", "chat": "perhaps"}, "chat: must be true or false (got 'perhaps')"),
        ({"name": "a", "temprature": 1}, "unknown field 'temprature'; there are name, sampling"),
        ({"name": "a", "sampling": {"temp": 1}}, "unknown field 'temp'; there are temperature"),
        (
            {"name": "a", "sampling": {"top_k": "many"}},
            "sampling.top_k: must be a whole number (got 'many')",
        ),
        ({"name": 3}, "name: must be a text (got 3)"),
        ({"name": "a", "max_tokens": 1.5}, "max_tokens: must be a whole number (got 1.5)"),
        ({"name": "a", "sampling": {"top_p": "x"}}, "sampling.top_p: must be a number (got 'x')"),
        ({"name": "a", "sampling": 3}, "sampling: must be an object (got 3)"),
        ({"name": "a", "sampling": {"top_p": 0}}, "sampling: top_p must be a number above 0"),
        ('{"name": "a", "sampling": {"temperature": NaN}}', "sampling: temperature must be"),
        ({"name": "a", "max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"name": "a", "thinking_budget": -1}, "thinking_budget must be at least 0, got -1"),
    ],
    ids=str,
)
def test_a_card_that_is_none_says_why_in_one_line(card, beside, part):
    with pytest.raises(ModelFormatError) as refused:
        card({}, beside)
    assert "model.card.json: is no model card: " in str(refused.value)
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Some Model_27B", "some-model-27b"), ("a  b__c", "a-b-c"), ("v1.5 (final)!", "v1.5-final")],
)
def test_names_are_compared_without_case_spaces_and_signs(name, expected):
    assert normalised(name) == expected
