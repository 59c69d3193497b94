"""kinfolk run: a prompt in, its completion out."""

from __future__ import annotations

import json

import pytest

GREEDY = ("--temperature", "0", "--ignore-eos")


def test_a_completion_is_printed_behind_its_prompt(kinfolk, model):
    result = kinfolk("run", "-m", model, "-n", 5, *GREEDY, "def f(x):")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("def f(x):")
    assert len(result.stdout) > len("def f(x):\n")
    assert result.stderr == ""


def test_without_echo_only_the_completion_is_printed(kinfolk, model):
    echoed = kinfolk("run", "-m", model, "-n", 5, *GREEDY, "def f(x):").stdout
    plain = kinfolk("run", "-m", model, "-n", 5, *GREEDY, "--no-echo", "def f(x):").stdout
    assert echoed == "def f(x):" + plain


def test_the_prompt_can_come_from_stdin(kinfolk, model):
    argument = kinfolk("run", "-m", model, "-n", 5, *GREEDY, "def f(x):")
    piped = kinfolk("run", "-m", model, "-n", 5, *GREEDY, stdin="def f(x):")
    assert piped.stdout == argument.stdout


def test_words_without_quotes_are_one_prompt(kinfolk, model):
    result = kinfolk("run", "-m", model, "-n", 1, *GREEDY, "one", "two")
    assert result.stdout.startswith("one two")


def test_the_prompt_can_come_from_a_file(kinfolk, model, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("def f(x):")
    argument = kinfolk("run", "-m", model, "-n", 5, *GREEDY, "def f(x):")
    assert kinfolk("run", "-m", model, "-n", 5, *GREEDY, "-f", path).stdout == argument.stdout
    piped = kinfolk("run", "-m", model, "-n", 5, *GREEDY, "-f", "-", stdin="def f(x):")
    assert piped.stdout == argument.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-f", "no.txt"), "no.txt: cannot be read: No such file"),
        (("-f", "."), ".: cannot be read: Is a directory"),
        (("-f", "a.txt", "Hi"), "two prompts are named, 'Hi' and --file a.txt"),
    ],
)
def test_a_prompt_that_cannot_be_read_or_is_there_twice_is_told(kinfolk, words, said):
    result = kinfolk("run", *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_minus_one_token_is_all_that_fit(kinfolk, model, tmp_path):
    """-1 also overrides a number in the model's card."""
    copy = tmp_path / "model.gguf"
    copy.write_bytes(model.read_bytes())
    copy.with_suffix(".card.json").write_text('{"name": "m", "max_tokens": 3}')
    result = kinfolk("run", "-m", copy, "-n", "-1", "-c", 32, *GREEDY, "--raw", "--json", "Hi")
    answer = json.loads(result.stdout)
    assert answer["prompt_tokens"] + answer["completion_tokens"] == 32


@pytest.mark.parametrize("count", ["0", "-2", "x"])
def test_no_tokens_are_no_answer(kinfolk, model, count):
    result = kinfolk("run", "-m", model, "-n", count, "Hi")
    assert result.exit_code == 2
    assert "'-n'" in result.stderr


def test_an_empty_prompt_is_an_error(kinfolk, model):
    result = kinfolk("run", "-m", model, stdin="")
    assert result.exit_code == 2
    assert "prompt is empty" in result.stderr


def test_json_holds_everything_about_the_answer(kinfolk, model):
    result = kinfolk("run", "-m", model, "-n", 4, *GREEDY, "--seed", 3, "--json", "Hi")
    answer = json.loads(result.stdout)
    assert answer["completion_tokens"] == 4
    assert answer["finish_reason"] == "length"
    assert answer["seed"] == 3
    assert answer["prompt_tokens"] > 0
    assert answer["load_seconds"] > 0
    assert answer["first_token_seconds"] > 0


def test_the_same_seed_says_the_same(kinfolk, model):
    def sample(seed):
        arguments = ("-n", 12, "--temperature", 1.5, "--seed", seed, "--no-echo", "--ignore-eos")
        return kinfolk("run", "-m", model, *arguments, "Hi").stdout

    assert sample(1) == sample(1) != sample(2)


def test_stop_strings_end_the_completion(kinfolk, model):
    text = kinfolk("run", "-m", model, "-n", 40, *GREEDY, "--no-echo", "Hi").stdout
    stop = text[10:12]
    cut = kinfolk("run", "-m", model, "-n", 40, *GREEDY, "--no-echo", "--stop", stop, "Hi").stdout
    assert cut == text[: text.index(stop)] + "\n"


def test_stats_go_to_stderr(kinfolk, model):
    result = kinfolk("run", "-m", model, "-n", 3, *GREEDY, "--stats", "Hi")
    assert "3 tokens at" in result.stderr
    assert "tok/s" not in result.stdout


def test_what_became_of_drafts_is_told(kinfolk, model):
    """Random drafts of 4, 3, 2 and 1 tokens, none of which is right; the last token has none."""
    drafting = ("--draft", "random", "--draft-width", 4, "--ignore-eos")
    result = kinfolk("run", "-m", model, "-n", 6, *GREEDY, *drafting, "--json", "Hi")
    answer = json.loads(result.stdout)
    figures = {
        "draft_steps": 4,
        "drafted_tokens": 10,
        "accepted_tokens": 0,
        "accept_length": 1.0,
        "accept_rate": 0.0,
    }
    assert answer | figures == answer
    result = kinfolk("run", "-m", model, "-n", 6, *GREEDY, *drafting, "--stats", "Hi")
    assert ", 0/10 drafts, 1.00 tokens a drafting step, length" in result.stderr
    result = kinfolk("run", "-m", model, "-n", 6, *GREEDY, "--ignore-eos", "--stats", "Hi")
    assert "draft" not in result.stderr


# -- chat models ----------------------------------------------------------------------------------


def test_a_chat_model_is_asked_through_its_template(kinfolk, chat_model):
    asked = kinfolk("run", "-m", chat_model, "-n", 4, *GREEDY, "--json", "Hi")
    raw = kinfolk("run", "-m", chat_model, "-n", 4, *GREEDY, "--json", "--raw", "Hi")
    assert json.loads(asked.stdout)["prompt_tokens"] > json.loads(raw.stdout)["prompt_tokens"]


def test_an_answer_is_printed_without_its_question(kinfolk, chat_model):
    result = kinfolk("run", "-m", chat_model, "-n", 4, *GREEDY, "xyzzy")
    assert "xyzzy" not in result.stdout


def test_a_system_message_comes_first(kinfolk, chat_model):
    plain = kinfolk("run", "-m", chat_model, "-n", 4, *GREEDY, "--json", "Hi")
    led = kinfolk("run", "-m", chat_model, "-n", 4, *GREEDY, "--json", "--system", "Obey", "Hi")
    assert json.loads(led.stdout)["prompt_tokens"] > json.loads(plain.stdout)["prompt_tokens"]


def test_raw_text_has_no_system_message(kinfolk, chat_model):
    result = kinfolk("run", "-m", chat_model, "--raw", "--system", "Obey", "Hi")
    assert result.exit_code == 2
    assert "--system" in result.stderr


def test_a_system_message_is_answered_with_chat_where_the_model_could(kinfolk, model):
    """The bundled model completes text unless it is asked to chat."""
    result = kinfolk("run", "--system", "Obey", "Hi")
    assert result.exit_code == 2
    assert "--chat" in result.stderr
    result = kinfolk("run", "-m", model, "--system", "Obey", "Hi")
    assert "--chat" not in result.stderr
    assert "the model has none" in result.stderr


def test_a_model_without_a_template_cannot_be_made_to_chat(kinfolk, model):
    result = kinfolk("run", "-m", model, "--chat", "Hi")
    assert result.exit_code == 2
    assert "chat template" in result.stderr


def test_a_card_can_say_that_a_model_completes_text(kinfolk, chat_model, tmp_path):
    copy = tmp_path / "code.gguf"
    copy.write_bytes(chat_model.read_bytes())
    copy.with_suffix(".card.json").write_text('{"name": "code", "chat": false, "max_tokens": 3}')
    result = kinfolk("run", "-m", copy, *GREEDY, "--json", "Hi")
    answer = json.loads(result.stdout)
    raw = kinfolk("run", "-m", chat_model, "-n", 3, *GREEDY, "--raw", "--json", "Hi")
    expected = json.loads(raw.stdout)
    assert (answer["text"], answer["completion_tokens"]) == (expected["text"], 3)


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.gguf", "no/such/model.gguf"])
def test_a_lone_model_is_answered_with_how_to_load_it(kinfolk, name):
    result = kinfolk("run", name)
    assert result.exit_code == 2
    assert f"kinfolk run -m {name}" in result.stderr


def test_a_lone_file_of_any_name_is_no_prompt(kinfolk, tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x")
    result = kinfolk("run", tmp_path / "weights.bin")
    assert result.exit_code == 2
    assert "is a file, not a prompt" in result.stderr


def test_a_prompt_may_be_longer_than_a_file_name(kinfolk, model):
    assert kinfolk("run", "-m", model, "-n", 1, *GREEDY, "x " * 5000).exit_code == 2
    result = kinfolk("run", "-m", model, "-n", 1, *GREEDY, "x " * 500)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("chat.ggu", "did you mean"),
        ("chat", "did you mean"),
        ("entirely-different-name-of-a-model.gguf", "no such file"),
        ("", "is a folder"),
        ("nowhere/chat.gguf", "there is no folder"),
    ],
)
def test_a_model_that_is_not_there_is_told_with_what_was_meant(kinfolk, chat_model, name, hint):
    path = chat_model.parent / name
    result = kinfolk("run", "-m", path, "Hi")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {path}")
    assert hint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_no_model_is_told_by_name(kinfolk, tmp_path):
    path = tmp_path / "fake.gguf"
    path.write_bytes(b"PK\3\4" * 100)
    result = kinfolk("run", "-m", path, "Hi")
    assert result.exit_code == 2
    assert "not a GGUF file" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [("--top-p", 1.5), ("--temperature", -1), ("--min-p", 2), ("--repetition-penalty", 0)],
)
def test_an_option_out_of_range_is_told_by_name(kinfolk, model, option, value):
    result = kinfolk("run", "-m", model, option, value, "Hi")
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr


def test_a_prompt_that_does_not_fit_is_told_with_the_numbers(kinfolk, model):
    result = kinfolk("run", "-m", model, "--context", 64, "word " * 200)
    assert result.exit_code == 2
    assert "maximum context length is 64 tokens" in result.stderr


def test_an_answer_starts_from_what_an_earlier_one_left_on_the_disk(kinfolk, chat_model, tmp_path):
    words = ("run", "-m", chat_model, "--device", "cpu", "--context", 1024, "-n", 2, "--json")
    disk = ("--cache-disk", 0.1, "--cache-memory", 0.1, "--cache-dir", tmp_path)
    text = "How many stones does the river carry to the sea? " * 6
    reused = []
    for _ in range(2):
        done = kinfolk(*words, *disk, text)
        assert done.exit_code == 0, done.stderr
        reused.append(json.loads(done.stdout)["cached_tokens"])
    assert reused[0] == 0
    assert reused[1] > 100
