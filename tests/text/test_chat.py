"""Conversations rendered by a template, and the forks where later prompts depart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import RequestError, TemplateError
from kinfolk.text.chat import ChatTemplate
from kinfolk.text.formats import ChatFormat
from kinfolk.text.messages import normalize_messages
from kinfolk_qwen35.text import CHAT

CONTROL, USER_DEFINED = 3, 4
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")
SPECIALS = [
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", CONTROL),
    *((marker, USER_DEFINED) for marker in (*MARKERS, "</tool_response>")),
]
SOURCE = (Path(__file__).parent / "data" / "turns.jinja").read_text()

CALL = {"type": "function", "function": {"name": "get", "arguments": '{"city": "Rome", "n": 2}'}}
TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yo"},
    {"role": "user", "content": "Q"},
]
LOOP = [
    {"role": "user", "content": "W?"},
    {"role": "assistant", "content": "", "reasoning_content": "R", "tool_calls": [CALL]},
    {"role": "tool", "content": "21C"},
]


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    return make_tokenizer(["Ċ Ċ"], SPECIALS, chat=CHAT, eos_token_id=257)


@pytest.fixture(scope="module")
def turns(tokenizer) -> ChatTemplate:
    return ChatTemplate(SOURCE, tokenizer, CHAT)


# -- rendering ------------------------------------------------------------------------------------


def test_earlier_answers_are_written_without_reasoning(turns) -> None:
    assert turns.render(TALK, enable_thinking=False) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_reasoning_before_a_tool_result_is_kept_and_arguments_are_decoded(turns) -> None:
    assert turns.render(LOOP, enable_thinking=True) == (
        "<|im_start|>user\nW?<|im_end|>\n<|im_start|>assistant\n<think>\nR\n</think>\n\n"
        "<tool_call>\n<function=get>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=n>\n2\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n21C\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_tools_are_written_one_a_line_without_escapes(turns) -> None:
    tools = [{"type": "function", "function": {"name": "é<f>"}}, {"type": "x"}]
    assert turns.render(TALK[:2], tools, enable_thinking=False).startswith(
        "<|im_start|>system\nYou may call:\n<tools>\n"
        '{"type": "function", "function": {"name": "é<f>"}}\n{"type": "x"}\n</tools>\n\nS<|im_end|>'
    )


@pytest.mark.parametrize("messages", [TALK, LOOP], ids=["talk", "loop"])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "é<f>"}}]])
@pytest.mark.parametrize("prompted", [True, False])
def test_rendering_equals_that_of_transformers(turns, messages, tools, prompted) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    (theirs,), _ = render_jinja_template(
        [normalize_messages(messages, CHAT)],
        tools=tools,
        chat_template=SOURCE,
        add_generation_prompt=prompted,
        enable_thinking=False,
    )
    ours = turns.render(messages, tools, add_generation_prompt=prompted, enable_thinking=False)
    assert ours == theirs


def test_without_a_generation_prompt_the_text_ends_with_the_last_turn(turns) -> None:
    text = turns.render(TALK, add_generation_prompt=False)
    assert text.endswith("<|im_start|>user\nQ<|im_end|>\n")


def test_the_familys_aliases_of_roles_hold(turns) -> None:
    assert turns.render([{"role": "developer", "content": "S"}, *TALK[1:]]) == turns.render(TALK)


def test_a_file_without_a_template_has_none(make_metadata, tokenizer) -> None:
    assert ChatTemplate.from_metadata(make_metadata(), tokenizer) is None


def test_a_files_template_for_tools_is_used_when_there_are_tools(tokenizer, make_metadata) -> None:
    meta = make_metadata()
    values = {key: meta.value(key) for key in meta}
    values["tokenizer.chat_template"] = "plain {{ tools is none }}"
    values["tokenizer.chat_template.tool_use"] = "tools {{ tools | length }}"
    chat = ChatTemplate.from_metadata(type(meta).from_dict(values), tokenizer)
    assert chat is not None
    assert chat.render(TALK) == "plain True"
    assert chat.render(TALK, []) == "plain True"
    assert chat.render(TALK, [{}]) == "tools 1"


def test_templates_see_bos_eos_and_the_callers_variables(make_tokenizer) -> None:
    tokenizer = make_tokenizer([], [("<s>", CONTROL)], bos_token_id=256)
    chat = ChatTemplate("{{ bos_token }}|{{ eos_token }}|{{ mood }}|{{ documents }}", tokenizer)
    assert chat.render([], mood="good") == "<s>||good|None"


def test_variables_of_the_runtime_cannot_be_replaced(turns) -> None:
    with pytest.raises(RequestError, match="'messages'"):
        turns.render(TALK, **{"messages": []})


# -- errors ---------------------------------------------------------------------------------------


def test_a_refusal_carries_the_templates_words(turns) -> None:
    with pytest.raises(TemplateError, match="There is no question to answer") as caught:
        turns.render([{"role": "system", "content": "S"}])
    assert caught.value.http_status == 400
    with pytest.raises(TemplateError, match=r"Nobody is called critic\."):
        turns.render([*TALK, {"role": "critic", "content": "x"}])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{{ messages.nothing.more }}", ["'nothing'", "line 2"]),
        ("a\nb\n{% for x in messages %}{{ 1 // 0 }}{% endfor %}", ["ZeroDivisionError", "line 3"]),
        ("a\n{% if %}", ["not valid", "line 2"]),
        ("{{ 'x' | nonsense }}", ["not valid", "nonsense", "line 1"]),
        ("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", ["not valid"]),
        ("{% for x in y %}" * 60 + "{% endfor %}" * 60, ["not valid", "SyntaxError"]),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ["recursion"]),
        ("{{ 'x' * 9999999999 }}", ["too much text", "line 1"]),
        ("{% include 'x' %}", ["the chat template failed"]),
    ],
)
def test_a_broken_template_is_reported_by_line_as_the_files_fault(tokenizer, source, words) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source, tokenizer).render(TALK)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.http_status == 500


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        (TALK, {"tools": [{"name": 5}]}),
        (TALK, {"year": "new"}),
        ([{"role": "user", "content": "Q", "weight": "x"}], {}),
    ],
    ids=["tools", "variables", "messages"],
)
def test_what_a_sound_template_cannot_render_is_the_requests_fault(
    tokenizer, messages, fields
) -> None:
    source = (
        "{{ (year or 0) + 1 }}{% for t in tools or [] %}{{ 'a' + t.name }}{% endfor %}"
        "{% for m in messages %}{{ m.content ~ (m.weight or 0) // 1 }}{% endfor %}"
    )
    with pytest.raises(TemplateError, match=r"cannot be rendered.*line 1") as caught:
        ChatTemplate(source, tokenizer).render(messages, **fields)
    assert caught.value.http_status == 400


def test_a_variable_may_be_called_as_our_own_arguments_are(tokenizer) -> None:
    chat = ChatTemplate("{{ source }}{{ probe }}<|im_end|>", tokenizer)
    assert chat.prompt(TALK, source="a", probe="b", messages_="c").text == "ab<|im_end|>"
    with pytest.raises(RequestError, match="'self'"):
        chat.prompt(TALK, **{"self": 1})


# -- tokens ---------------------------------------------------------------------------------------


def test_a_conversation_is_encoded_with_its_special_tokens(turns, tokenizer) -> None:
    tokens = turns.encode(TALK)
    assert tokens == tokenizer.encode(turns.render(TALK))
    assert tokens.count(tokenizer.encode("<|im_start|>")[0]) == 5
    assert tokenizer.decode(tokens) == turns.render(TALK)


@pytest.mark.parametrize("source", ["{{ bos_token }}x", "x"])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_bos_is_there_once_whoever_writes_it(make_tokenizer, source, adds_bos) -> None:
    tokenizer = make_tokenizer([], [("<s>", CONTROL)], bos_token_id=256, add_bos_token=adds_bos)
    tokens = ChatTemplate(source, tokenizer).encode([])
    wanted = adds_bos or "bos" in source
    assert tokens == [256] * wanted + [ord("x")]


# -- where the next turn departs ------------------------------------------------------------------


def departure(chat: ChatTemplate, tokenizer, messages, **variables) -> tuple[str, str]:
    """The prompt before and after the only fork."""
    prompt = chat.prompt(messages, **variables)
    (fork,) = prompt.forks
    return tokenizer.decode(prompt.tokens[:fork]), tokenizer.decode(prompt.tokens[fork:])


@pytest.mark.parametrize(
    ("thinking", "rest"),
    [(True, "assistant\n<think>\n"), (False, "assistant\n<think>\n\n</think>\n\n")],
)
def test_the_next_question_departs_at_the_last_header(turns, tokenizer, thinking, rest) -> None:
    before, after = departure(turns, tokenizer, TALK, enable_thinking=thinking)
    assert after == rest
    assert before.endswith("Q<|im_end|>\n<|im_start|>")


def test_after_a_tool_loop_the_next_question_departs_where_reasoning_was(turns, tokenizer) -> None:
    before, after = departure(turns, tokenizer, LOOP, enable_thinking=True)
    assert before == "<|im_start|>user\nW?<|im_end|>\n<|im_start|>"
    assert after.startswith("assistant\n<think>\nR\n")


def test_a_template_that_rewrites_nothing_forks_at_its_last_special(tokenizer) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = ChatTemplate(source, tokenizer)
    assert departure(chat, tokenizer, TALK)[1] == "assistant\n"
    whole, rest = departure(chat, tokenizer, TALK[:3], add_generation_prompt=False)
    assert (whole[-12:], rest) == ("Yo<|im_end|>"[-12:], "")


def test_a_text_that_reads_like_bos_and_is_none_does_not_take_its_place(make_tokenizer) -> None:
    """Only the token counts: here its text is ordinary and does not become that token."""
    tokenizer = make_tokenizer([], [("<s>", 1)], bos_token_id=256, add_bos_token=True)
    tokens = ChatTemplate("{{ bos_token }}x", tokenizer).prompt([]).tokens
    assert tokens == [256, *b"<s>x"]


def test_bos_of_the_tokenizer_is_counted(make_tokenizer) -> None:
    tokenizer = make_tokenizer(
        [], [("<s>", CONTROL), ("<|u|>", CONTROL)], bos_token_id=256, add_bos_token=True
    )
    chat = ChatTemplate("{% for m in messages %}<|u|>{{ m.content }}{% endfor %}", tokenizer)
    prompt = chat.prompt([{"role": "user", "content": "ab"}])
    assert prompt.tokens == [256, 257, 97, 98]
    assert prompt.forks == (2,)


def test_there_is_no_fork_if_the_template_refuses_another_turn(tokenizer) -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}<|im_end|>"
    assert ChatTemplate(source, tokenizer).prompt(TALK[1:2]).forks == ()


def test_there_is_no_fork_without_a_special_token(tokenizer) -> None:
    chat = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", tokenizer)
    assert chat.prompt(TALK).forks == ()


CONTENT = st.lists(
    st.sampled_from([*"ab \n<|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]), max_size=6
).map("".join)


# -- where conversations with the same system prompt part ------------------------------------------

LONG = "You are a helpful assistant who answers in one short sentence, or not at all."
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("question", ["Hi", "y", "z", "yes", "<|im_end|>", ""])
def test_conversations_with_the_same_system_prompt_part_behind_it(
    turns, tokenizer, question
) -> None:
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": question}]
    shared, last = (prompt := turns.prompt(messages)).forks
    assert tokenizer.decode(prompt.tokens[:shared]).endswith(f"{LONG}<|im_end|>\n<|im_start|>")
    assert tokenizer.decode(prompt.tokens[shared:last]).startswith(f"user\n{question}")


def test_later_turns_name_the_same_place(turns) -> None:
    opening = [{"role": "system", "content": LONG}, *TALK[1:2]]
    shared, last = turns.prompt(opening).forks
    again, later = turns.prompt([{"role": "system", "content": LONG}, *TALK[1:]]).forks
    assert (again, later > last) == (shared, True)


def test_tools_are_part_of_what_is_shared(turns, tokenizer) -> None:
    source = (
        "<|im_start|>{{ tools | tojson if tools }}<|im_end|>{% for m in messages %}"
        "<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
    )
    chat = ChatTemplate(source, tokenizer)
    assert len(chat.prompt(TALK[1:2]).forks) == 1, "two special tokens are too few"
    shared, _ = (prompt := chat.prompt(TALK[1:2], [TOOL])).forks
    assert tokenizer.decode(prompt.tokens[:shared]).endswith("}]<|im_end|><|im_start|>")
    one, *_ = chat.prompt(TALK[1:2], [TOOL, TOOL]).forks
    assert one > shared


@given(questions=st.lists(CONTENT, min_size=2, max_size=2), system=CONTENT)
def test_any_other_conversation_begins_with_the_tokens_before_the_first_fork(
    turns, questions, system
) -> None:
    first, other = (
        turns.prompt(
            [{"role": "system", "content": LONG + system}, {"role": "user", "content": question}]
        )
        for question in questions
    )
    shared = first.forks[0]
    assert first.tokens[:shared] == other.tokens[:shared]
    assert shared in other.forks


@given(
    questions=st.lists(CONTENT, min_size=1, max_size=3),
    answer=CONTENT,
    following=CONTENT,
    thinking=st.booleans(),
)
def test_any_next_turn_begins_with_the_tokens_before_the_fork(
    turns, questions, answer, following, thinking
) -> None:
    messages = []
    for question in questions:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer, "reasoning": "R"},
        ]
    asked = messages[:-1]
    prompt = turns.prompt(asked, enable_thinking=thinking)
    longer = [*messages, {"role": "user", "content": following}]
    assert (
        turns.encode(longer, enable_thinking=thinking)[: prompt.forks[-1]]
        == (prompt.tokens[: prompt.forks[-1]])
    )


def test_no_format_is_needed(tokenizer) -> None:
    chat = ChatTemplate("{% for m in messages %}{{ m.role }}{% endfor %}", tokenizer, ChatFormat())
    assert chat.render([{"role": "developer", "content": ""}]) == "developer"
