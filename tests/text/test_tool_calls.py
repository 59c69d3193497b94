"""Tool calls are separated from text, in the syntaxes of all families, however the text is cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.text.formats import ChatFormat
from kinfolk.text.tool_calls import (
    Content,
    ToolArguments,
    ToolCallParser,
    ToolEnd,
    ToolGrammar,
    ToolStart,
)
from kinfolk_gemma4.text import CHAT as GEMMA4
from kinfolk_laguna.text import CHAT as LAGUNA
from kinfolk_qwen35.text import CHAT as QWEN35
from kinfolk_qwen35moe.text import CHAT as QWEN35MOE

FORMATS = {"qwen35": QWEN35, "gemma4": GEMMA4, "laguna": LAGUNA}


def function(name, required=(), **types):
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    function("get_weather", ["city"], city="string", days="integer"),
    function("note", text="string", tags="array", urgent="boolean"),
    function("ping"),
]


def parse(family, pieces):
    parser = ToolCallParser(ToolGrammar.of(FORMATS[family], TOOLS))
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def joined(events):
    """Events with neighbouring fragments joined, so that they do not depend on the cut."""
    found = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Content) and isinstance(last, Content):
            assert event.skipped == 0
            found[-1] = Content(last.text + event.text, last.skipped)
        elif isinstance(event, ToolArguments) and isinstance(last, ToolArguments):
            found[-1] = ToolArguments(last.index, last.json + event.json)
        else:
            found.append(event)
    return found


def outcome(events):
    """Content, and name and arguments of each complete call."""
    events = joined(events)
    names = {event.index: event.name for event in events if isinstance(event, ToolStart)}
    arguments = {event.index: event.json for event in events if isinstance(event, ToolArguments)}
    ended = [event.index for event in events if isinstance(event, ToolEnd)]
    content = "".join(event.text for event in events if isinstance(event, Content))
    return content, [(names[index], json.loads(arguments[index])) for index in ended]


ROME = ("get_weather", {"city": "Rome", "days": 3})

QWEN_ROME = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
LAGUNA_ROME = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)
GEMMA_ROME = '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'


def qwen_note(text):
    return (
        f"<tool_call>\n<function=note>\n<parameter=text>\n{text}\n</parameter>\n"
        "</function>\n</tool_call>"
    )


def laguna_note(text):
    return f"<tool_call>note<arg_key>text</arg_key><arg_value>{text}</arg_value></tool_call>"


def gemma_note(inside):
    return "<|tool_call>call:note{" + inside + "}<tool_call|>"


CASES = [
    # family, text, content, calls
    ("qwen35", "Checking.\n\n" + QWEN_ROME, "Checking.", [ROME]),
    ("qwen35", QWEN_ROME + "\n" + QWEN_ROME + "\n", "", [ROME, ROME]),
    ("qwen35", " \n\n" + QWEN_ROME + "\n\nDone. ", "Done. ", [ROME]),
    (
        "qwen35",
        "<tool_call>\n<function=note>\n<parameter=text>\n  if x:\n    y\n</parameter>\n"
        '<parameter=tags>\n["a", "b"]\n</parameter>\n<parameter=urgent>\nTrue\n</parameter>\n'
        "</function>\n</tool_call>",
        "",
        [("note", {"text": "  if x:\n    y", "tags": ["a", "b"], "urgent": True})],
    ),
    (
        "qwen35",
        qwen_note("a </parameter> b"),
        "",
        [("note", {"text": "a </parameter> b"})],
    ),
    ("qwen35", qwen_note(""), "", [("note", {"text": ""})]),
    ("qwen35", qwen_note("\n\n"), "", [("note", {"text": "\n\n"})]),
    ("qwen35", qwen_note('q"\\ é\t😀'), "", [("note", {"text": 'q"\\ é\t😀'})]),
    # One newline at either side at most, and none needed.
    ("qwen35", qwen_note("x").replace("\nx\n", "x"), "", [("note", {"text": "x"})]),
    ("qwen35", "<tool_call><function=ping></function></tool_call>", "", [("ping", {})]),
    # Missing outer tags, before, after and between.
    ("qwen35", QWEN_ROME.removeprefix("<tool_call>\n"), "", [ROME]),
    ("qwen35", QWEN_ROME.removesuffix("\n</tool_call>"), "", [ROME]),
    ("qwen35", QWEN_ROME.removesuffix("</tool_call>") + QWEN_ROME, "", [ROME, ROME]),
    ("qwen35", QWEN_ROME.replace("</function>\n", ""), "", [ROME]),
    # The first of two values counts.
    (
        "qwen35",
        QWEN_ROME.replace("</function>", "<parameter=city>\nOslo\n</parameter>\n</function>"),
        "",
        [ROME],
    ),
    # An undeclared parameter is typed by its looks.
    (
        "qwen35",
        qwen_note("t").replace("parameter=text", "parameter=x").replace("\nt\n", "\n[1]\n"),
        "",
        [("note", {"x": [1]})],
    ),
    ("gemma4", GEMMA_ROME, "", [ROME]),
    (
        "gemma4",
        '<|tool_call>call:get_weather{city:<|"|>R"x<|"|>,days:3}<tool_call|>'
        + gemma_note('tags:[<|"|>a<|"|>],text:<|"|>t<|"|>,urgent:None'),
        "",
        [
            ("get_weather", {"city": 'R"x', "days": 3}),
            ("note", {"tags": ["a"], "text": "t", "urgent": None}),
        ],
    ),
    ("gemma4", "<|tool_call>call:ping{}<tool_call|>", "", [("ping", {})]),
    ("gemma4", "So. " + GEMMA_ROME.removesuffix("<tool_call|>"), "So.", [ROME]),
    (
        "gemma4",
        gemma_note(' "text" : "a\\"b\\n" , x:{y:[1.5,-2,[],{}],<|"|>z z<|"|>:true},'),
        "",
        [("note", {"text": 'a"b\n', "x": {"y": [1.5, -2, [], {}], "z z": True}})],
    ),
    (
        "gemma4",
        gemma_note('text:<|"|>{a}, [b] <| \\ é<|"|>,urgent:yes,tags:null'),
        "",
        [("note", {"text": "{a}, [b] <| \\ é", "urgent": True, "tags": None})],
    ),
    ("laguna", "Hm.\n" + LAGUNA_ROME + "\n", "Hm.", [ROME]),
    ("laguna", LAGUNA_ROME.replace("\n", ""), "", [ROME]),
    ("laguna", LAGUNA_ROME + "\n" + LAGUNA_ROME, "", [ROME, ROME]),
    ("laguna", LAGUNA_ROME.removesuffix("</tool_call>"), "", [ROME]),
    ("laguna", LAGUNA_ROME.removesuffix("</tool_call>") + LAGUNA_ROME, "", [ROME, ROME]),
    ("laguna", "<tool_call>ping</tool_call>", "", [("ping", {})]),
    ("laguna", "<tool_call> ping\n</tool_call>", "", [("ping", {})]),
    ("laguna", laguna_note("\n  a\n "), "", [("note", {"text": "\n  a\n "})]),
    ("laguna", laguna_note("a</arg_value>b"), "", [("note", {"text": "a</arg_value>b"})]),
]

TEXTS = [
    # Text that is not a call stays text, to the last character.
    ("qwen35", "a <b <tool_cal"),
    ("qwen35", "\n\nText.  \n"),
    ("qwen35", "use <tool_call> and </tool_call>\n"),
    ("qwen35", "Say:\n\n<tool_call>\n<function=unknown>\n</function>\n</tool_call>\n"),
    ("qwen35", "<function=<function=>"),
    ("qwen35", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo"),
    ("qwen35", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"),
    ("qwen35", "<tool_call>\n<function=get_wea"),
    ("qwen35", "<tool_call>\n<function=ping>\nwhy?\n</function>"),
    ("qwen35", " <tool_call>" * 3),
    ("gemma4", "<|tool_call>call:other{}<tool_call|>"),
    ("gemma4", '<|tool_call>call:note{text:<|"|>abc'),
    ("gemma4", "<|tool_call>call:note{urgent:1<tool_call|> }"),
    ("gemma4", "<|tool_call>call:note" + "{a:" * 100),
    ("gemma4", "call:note{}"),
    ("laguna", "<tool_call>get_weather\n"),
    ("laguna", "<tool_call>two words</tool_call>"),
    ("laguna", laguna_note("x").replace("<arg_value>", "<arg_key>")),
    ("laguna", laguna_note("x").removesuffix("</arg_value></tool_call>")),
]


@pytest.mark.parametrize(("family", "text", "content", "calls"), CASES)
def test_calls_are_told_from_content(family, text, content, calls):
    assert outcome(parse(family, [text])) == (content, calls)


@pytest.mark.parametrize(("family", "text"), TEXTS)
def test_what_is_no_call_is_given_back_whole(family, text):
    assert outcome(parse(family, [text])) == (text, [])


@pytest.mark.parametrize(
    ("family", "text"), [case[:2] for case in CASES] + TEXTS, ids=lambda part: part[:30]
)
def test_the_cut_into_pieces_does_not_matter(family, text):
    whole = joined(parse(family, [text]))
    assert joined(parse(family, list(text))) == whole
    for place in range(len(text) + 1):
        assert joined(parse(family, [text[:place], text[place:]])) == whole


PARTS = {
    family: [*chat.tool_call, *chat.tool_syntax.markers, *extra]
    for (family, chat), extra in zip(
        FORMATS.items(),
        (
            ["ping", "note", "text", "urgent", QWEN_ROME],
            ["call:ping{", "call:note{", "text:", "urgent:", "}", ",", "[", "]", GEMMA_ROME],
            ["ping", "note", "text", "urgent", LAGUNA_ROME],
        ),
        strict=True,
    )
}
COMMON = ["\n", " ", "<", ">", "/", '"', "\\", "{", "x", "é", "1", "null", "True", "[1]"]


@pytest.mark.parametrize("family", FORMATS)
@given(data=st.data())
def test_garbage_is_parsed_alike_in_any_pieces(family, data):
    parts = st.sampled_from(PARTS[family] + COMMON) | st.text(max_size=4)
    text = "".join(data.draw(st.lists(parts, max_size=16)))
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in pairwise([0, *places, len(text)])]
    events = joined(parse(family, pieces))
    assert events == joined(parse(family, [text]))
    begun = [event.index for event in events if isinstance(event, ToolStart)]
    assert begun == list(range(len(begun)))
    for _, arguments in outcome(events)[1]:
        assert isinstance(arguments, dict)
    shown = 0
    for event in events:
        if isinstance(event, Content):
            shown += event.skipped
            assert text[shown : shown + len(event.text)] == event.text
            shown += len(event.text)
    assert shown <= len(text)


@pytest.mark.parametrize("write", [qwen_note, laguna_note], ids=["qwen35", "laguna"])
@given(text=st.text(st.characters(codec="utf-8")))
def test_any_text_survives_as_an_argument(write, text):
    family = "qwen35" if write is qwen_note else "laguna"
    assert outcome(parse(family, [write(text)])) == ("", [("note", {"text": text})])


def test_strings_are_passed_on_while_they_come():
    parser = ToolCallParser(ToolGrammar.of(QWEN35, TOOLS))
    assert parser.feed("Now.\n\n<tool_call>\n<func") == [Content("Now.")]
    assert parser.feed("tion=note>") == []
    assert parser.feed("\n<parameter=text>\n") == [
        ToolStart(0, "note"),
        ToolArguments(0, '{"text": "'),
    ]
    assert parser.feed('a "b') == [ToolArguments(0, 'a \\"b')]
    assert parser.feed(" c\n") == [ToolArguments(0, " c")]
    assert parser.feed("d\n</param") == [ToolArguments(0, "\\nd")]
    assert parser.feed("eter>\n</function>") == [ToolArguments(0, '"}'), ToolEnd(0)]
    assert parser.feed("\n</tool_call>") + parser.finish() == []


def test_only_what_may_become_a_marker_is_held_back():
    parser = ToolCallParser(ToolGrammar.of(LAGUNA, TOOLS))
    assert parser.feed("a < b") == [Content("a < b")]
    assert parser.feed(" \n<tool") == []
    assert parser.feed("s>") == [Content(" \n<tools>")]


def test_without_schemas_any_name_is_a_call_and_values_go_by_their_looks():
    grammar = ToolGrammar(*QWEN35.tool_call, QWEN35.tool_syntax)
    parser = ToolCallParser(grammar)
    events = parser.feed(QWEN_ROME.replace("get_weather", "f")) + parser.finish()
    assert outcome(events) == ("", [("f", {"city": "Rome", "days": 3})])


def test_a_family_without_a_syntax_has_no_grammar():
    assert ToolGrammar.of(ChatFormat(), TOOLS) is None
    assert ToolGrammar.of(ChatFormat(tool_call=("<a>", "</a>")), TOOLS) is None


def test_both_sizes_of_a_family_speak_alike():
    assert QWEN35MOE.tool_syntax == QWEN35.tool_syntax
