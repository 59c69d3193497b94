"""Messages in the one form that all templates render."""

from __future__ import annotations

import copy

import pytest

from kinfolk.errors import RequestError
from kinfolk.text.formats import ChatFormat
from kinfolk.text.messages import normalize_messages

CHAT = ChatFormat(role_aliases={"developer": "system"})


def normalize(*messages):
    return normalize_messages(messages, CHAT)


def call(arguments) -> dict:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", **arguments}}],
    }


def arguments_of(message) -> object:
    return normalize(message)[0]["tool_calls"][0]["function"]["arguments"]


def test_roles_are_renamed_as_the_family_says() -> None:
    assert normalize({"role": "developer", "content": "S"}) == [{"role": "system", "content": "S"}]


def test_system_messages_are_joined_at_the_front() -> None:
    assert normalize(
        {"role": "system", "content": "A"},
        {"role": "user", "content": "Q"},
        {"role": "developer", "content": "B"},
        {"role": "system", "content": ""},
    ) == [{"role": "system", "content": "A\n\nB"}, {"role": "user", "content": "Q"}]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": " c"}]
    assert normalize({"role": "user", "content": parts})[0]["content"] == "ab c"


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "content": None}])
def test_no_content_is_an_empty_text(message) -> None:
    assert normalize(message)[0]["content"] == ""


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_found_under_both_names(name: str) -> None:
    turn = normalize({"role": "assistant", "content": "x", name: "R"})[0]
    assert (turn["reasoning"], turn["reasoning_content"]) == ("R", "R")


@pytest.mark.parametrize(
    ("given", "decoded"),
    [
        ({"arguments": '{"a": 1}'}, {"a": 1}),
        ({"arguments": {"a": 1}}, {"a": 1}),
        ({"arguments": ""}, {}),
        ({"arguments": None}, {}),
        ({}, {}),
        ({"arguments": "[1]"}, {"_raw": "[1]"}),
        ({"arguments": "[" * 100_000}, {"_raw": "[" * 100_000}),
        ({"arguments": '{"a": '}, {"_raw": '{"a": '}),
    ],
)
def test_arguments_of_calls_become_mappings(given, decoded) -> None:
    assert arguments_of(call(given)) == decoded


def test_arguments_next_to_the_name_are_decoded_too() -> None:
    message = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}]}
    assert normalize(message)[0]["tool_calls"] == [{"name": "f", "arguments": {"a": 1}}]


def test_the_callers_messages_stay_as_they_are() -> None:
    message = call({"arguments": '{"a": 1}'})
    before = copy.deepcopy(message)
    normalize(message)
    assert message == before


def test_other_fields_are_kept() -> None:
    turn = normalize({"role": "tool", "content": "x", "tool_call_id": "1", "name": "f"})[0]
    assert (turn["tool_call_id"], turn["name"]) == ("1", "f")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("hello", ["message 1", "'role'"]),
        ({"content": "x"}, ["message 1", "'role'"]),
        ({"role": 3}, ["message 1", "'role'"]),
        ({"role": "user", "content": 3}, ["message 1", "'content'"]),
        ({"role": "assistant", "reasoning_content": 3}, ["message 1", "'reasoning_content'"]),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            ["message 1", "part 0", "image_url"],
        ),
        ({"role": "user", "content": [None]}, ["part 0", "NoneType"]),
        ({"role": "user", "content": [{"type": "text"}]}, ["part 0", "'text'"]),
        ({"role": "assistant", "tool_calls": "x"}, ["message 1", "tool_calls"]),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, ["tool call 0", "'function'"]),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, ["tool call 0", "'name'"]),
        (call({"arguments": 3}), ["tool call 0", "'arguments'"]),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_place(message, words) -> None:
    with pytest.raises(RequestError) as caught:
        normalize({"role": "user", "content": "ok"}, message)
    for word in words:
        assert word in str(caught.value)
