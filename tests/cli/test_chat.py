"""kinfolk chat: questions on stdin, answers on stdout."""

from __future__ import annotations

import pytest

from kinfolk.cli import chat as chat_module

GREEDY = ("--temperature", "0", "--ignore-eos", "-n", "4")


@pytest.fixture
def prompts(monkeypatch):
    """The messages of every prompt that was rendered."""
    import kinfolk.engine.prompt as module

    seen = []
    original = module.chat_prompt

    def noting(runtime, messages, variables=None):
        seen.append([dict(message) for message in messages])
        return original(runtime, messages, variables)

    monkeypatch.setattr(module, "chat_prompt", noting)
    return seen


def test_answers_become_part_of_the_conversation(kinfolk, chat_model, prompts):
    result = kinfolk("chat", "-m", chat_model, *GREEDY, stdin="one\n\ntwo\n")
    assert result.exit_code == 0, result.stderr
    first, second = prompts
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert first == second[:1] == [{"role": "user", "content": "one"}]
    assert second[1]["content"] == result.stdout[: len(second[1]["content"])]


def test_reset_forgets_the_conversation_and_keeps_the_system_message(kinfolk, chat_model, prompts):
    lines = "one\n/reset\ntwo\n"
    kinfolk("chat", "-m", chat_model, *GREEDY, "--system", "Obey", stdin=lines)
    assert prompts[1] == [
        {"role": "system", "content": "Obey"},
        {"role": "user", "content": "two"},
    ]


def test_system_starts_again_with_another_message(kinfolk, chat_model, prompts):
    lines = "/system Be brief.\none\n/system\ntwo\n"
    kinfolk("chat", "-m", chat_model, *GREEDY, stdin=lines)
    assert prompts[0][0] == {"role": "system", "content": "Be brief."}
    assert [message["role"] for message in prompts[1]] == ["user"]


def test_exit_leaves(kinfolk, chat_model, prompts):
    result = kinfolk("chat", "-m", chat_model, *GREEDY, stdin="/exit\none\n")
    assert result.exit_code == 0
    assert prompts == []


def test_help_lists_the_commands_and_an_unknown_one_says_so(kinfolk, chat_model):
    result = kinfolk("chat", "-m", chat_model, stdin="/help\n/dance\n")
    assert all(word in result.stderr for word in ("/reset", "/system", "/exit", "Ctrl-C"))
    assert "there is no command /dance" in result.stderr


def test_stats_can_be_switched_on(kinfolk, chat_model):
    result = kinfolk("chat", "-m", chat_model, *GREEDY, stdin="one\n/stats\ntwo\n")
    assert result.stderr.count("tok/s") == 1


def test_a_question_that_does_not_fit_is_taken_back(kinfolk, chat_model, prompts):
    lines = "word " * 200 + "\nshort\n"
    result = kinfolk("chat", "-m", chat_model, *GREEDY, "--context", 64, stdin=lines)
    assert result.exit_code == 0
    assert "maximum context length" in result.stderr
    assert prompts[-1] == [{"role": "user", "content": "short"}]


def test_a_conversation_that_fills_the_context_is_told_the_way_out(kinfolk, chat_model, prompts):
    lines = "word " * 8 + "\n" + "word " * 8 + "\n/reset\nshort\n"
    result = kinfolk("chat", "-m", chat_model, *GREEDY, "--context", 64, stdin=lines)
    assert result.exit_code == 0
    assert "with this question the conversation has" in result.stderr
    assert "/reset" in result.stderr
    assert "shorten the prompt" not in result.stderr
    assert prompts[-1] == [{"role": "user", "content": "short"}]


def test_a_larger_context_is_named_only_where_there_is_one(kinfolk, chat_model):
    lines = "word " * 3000 + "\n"
    assert "--context" in kinfolk("chat", "-m", chat_model, "-c", 64, stdin=lines).stderr
    assert "--context" not in kinfolk("chat", "-m", chat_model, "-c", 4096, stdin=lines).stderr


def test_an_answer_that_the_context_cuts_off_is_told(kinfolk, chat_model):
    options = ("--temperature", 0, "--ignore-eos", "-c", 64)
    result = kinfolk("chat", "-m", chat_model, *options, "-n", -1, stdin="one\n")
    assert "(cut off: the context is full" in result.stderr
    assert "cut off" not in kinfolk("chat", "-m", chat_model, *options, "-n", 2, stdin="a").stderr


def test_interruption_stops_the_answer_and_not_the_program(
    kinfolk, chat_model, prompts, monkeypatch
):
    original = chat_module.click.echo
    calls = []

    def interrupted(*arguments, **options):
        original(*arguments, **options)
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(chat_module.click, "echo", interrupted)
    result = kinfolk("chat", "-m", chat_model, *GREEDY, stdin="one\ntwo\n")
    assert result.exit_code == 0
    assert "(stopped)" in result.stderr
    assert len(prompts) == 2
    assert prompts[1][1]["role"] == "assistant"


def test_a_model_without_a_template_cannot_hold_a_conversation(kinfolk, model):
    result = kinfolk("chat", "-m", model, stdin="one\n")
    assert result.exit_code == 2
    assert "kinfolk run" in result.stderr


def test_a_model_that_was_not_made_for_it_is_mentioned(kinfolk, chat_model, tmp_path):
    copy = tmp_path / "code.gguf"
    copy.write_bytes(chat_model.read_bytes())
    copy.with_suffix(".card.json").write_text('{"name": "code", "chat": false}')
    result = kinfolk("chat", "-m", copy, *GREEDY, stdin="one\n")
    assert result.exit_code == 0
    assert "is not a chat model" in result.stderr
