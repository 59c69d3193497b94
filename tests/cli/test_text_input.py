"""Text from files, stdin and arguments: UTF-8, an error with the offset, or replaced knowingly."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from kinfolk.cli import chat as chat_module
from kinfolk.cli.text_input import Lines
from kinfolk.errors import RequestError

GREEDY = ("--temperature", "0", "--ignore-eos", "-n", "2")
BAD = "byte 0xE9 at offset 3"


def escaped(raw: bytes) -> str:
    """Bytes as Python hands them to a program that is called with them."""
    return raw.decode("utf-8", "surrogateescape")


def refused(result, source: str) -> None:
    assert result.exit_code == 2
    assert f"{source}: is not UTF-8: {BAD}" in result.stderr
    assert "--errors replace" in result.stderr
    assert result.stdout == ""


# -- stdin and files ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["tokenize", "run"])
def test_stdin_that_is_not_utf8_is_refused_with_the_offset(kinfolk, model, command) -> None:
    arguments = {"tokenize": (model, "--json"), "run": ("-m", model, *GREEDY)}[command]
    refused(kinfolk(command, *arguments, stdin=b"caf\xe9 au lait"), "stdin")
    result = kinfolk(command, *arguments, "--errors", "replace", stdin=b"caf\xe9 au lait")
    assert result.exit_code == 0, result.stderr
    if command == "run":
        assert result.stdout.startswith("caf\ufffd au lait")


def test_a_file_in_another_encoding_is_named_with_the_offset(kinfolk, model, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"caf\xe9 au lait")
    refused(kinfolk("perplexity", model, text), str(text))
    text.write_bytes("a text".encode("utf-16"))
    assert "offset 0; it looks like UTF-16" in kinfolk("perplexity", model, text).stderr


@pytest.mark.parametrize(
    "raw", [b"caf\xe9 au lait\n" * 64, bytes(range(256)) * 4, "été \ufffd\n".encode() * 20]
)
def test_perplexity_counts_the_bytes_of_the_file(kinfolk, model, tmp_path, raw) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(raw)
    options = ("--json", "--errors", "replace", "--context", 4096)
    report = json.loads(kinfolk("perplexity", model, text, *options).stdout)
    ids = json.loads(kinfolk("tokenize", model, "--json", "--errors", "replace", stdin=raw).stdout)
    assert report["tokens"] == len(ids) - 1
    # All but the first token's, which has nothing before it to be predicted from.
    assert len(raw) - 8 <= report["bytes"] < len(raw)


def test_a_chat_template_in_another_encoding_is_named_when_it_is_converted(tmp_path) -> None:
    from kinfolk.convert.tokenizer_files import TokenizerFiles
    from kinfolk.errors import ConversionError

    (tmp_path / "chat_template.jinja").write_bytes(b"caf\xe9")
    files = TokenizerFiles(tmp_path, tmp_path / "tokenizer.json", {}, {}, {})
    with pytest.raises(ConversionError, match=rf"chat_template\.jinja: is not UTF-8: {BAD}"):
        dict(files.templates())


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("tokenize", "--text"),
        ("run", "--system"),
        ("run", "--stop"),
        ("run", "prompt"),
        ("chat", "--system"),
        ("chat", "--stop"),
    ],
)
def test_an_argument_that_is_not_utf8_is_refused_before_a_model_is_opened(
    kinfolk, tmp_path, command, flag
) -> None:
    model = tmp_path / "there-is-none.gguf"
    named = (model,) if command == "tokenize" else ("-m", model)
    given = (flag,) if flag.startswith("-") else ()
    text = escaped(b"caf\xe9")
    refused(kinfolk(command, *named, *given, text), flag)
    # The option may stand before or after the text.
    for order in (("--errors", "replace", *given, text), (*given, text, "--errors", "replace")):
        assert "there-is-none.gguf: no such file" in kinfolk(command, *named, *order).stderr


def test_an_argument_is_replaced_knowingly(kinfolk, model) -> None:
    text = escaped(b"caf\xe9")
    options = ("--json", "--errors", "replace")
    tokens = json.loads(kinfolk("tokenize", model, *options, "--text", text).stdout)
    same = json.loads(kinfolk("tokenize", model, "--json", "--text", "caf\ufffd").stdout)
    assert tokens == same


def test_bytes_of_a_real_command_line_are_refused(model, tmp_path) -> None:
    command = [sys.executable, "-m", "kinfolk", "tokenize", str(model), "--text", b"caf\xe9"]
    environment = {**os.environ, "PYTHONUTF8": "1"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120)
    assert done.returncode == 2
    assert f"--text: is not UTF-8: {BAD}" in done.stderr.decode()


def test_a_path_may_have_any_bytes(kinfolk, model, tmp_path) -> None:
    path = tmp_path / escaped(b"caf\xe9.gguf")
    path.symlink_to(model)
    assert kinfolk("tokenize", path, "--json", "--text", "a").exit_code == 0


# -- lines of a conversation ----------------------------------------------------------------------


def test_a_line_that_is_not_utf8_is_named_by_its_number(kinfolk, chat_model) -> None:
    lines = b"/stats\ncaf\xe9\n"
    result = kinfolk("chat", "-m", chat_model, *GREEDY, stdin=lines)
    refused(result, "line 2 of stdin")
    result = kinfolk("chat", "-m", chat_model, *GREEDY, "--errors", "replace", stdin=lines)
    assert result.exit_code == 0, result.stderr


def test_line_ends_of_other_systems_are_no_part_of_a_question(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\r\n\r\ntwo")))
    lines = Lines("strict")
    assert [lines.read() for _ in range(4)] == ["one", "", "two", None]


class Keyboard(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("errors", "expected"), [("strict", "good"), ("replace", "caf\ufffd")])
def test_what_is_typed_in_another_encoding_is_told_and_asked_again(
    monkeypatch, capsys, errors, expected
) -> None:
    keyboard = Keyboard(io.BytesIO(b"caf\xe9\ngood\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", keyboard)
    assert chat_module.read_line(Lines(errors)) == expected
    told = f"error: the typed line: is not UTF-8: {BAD}" in capsys.readouterr().err
    assert told == (errors == "strict")


def test_a_line_of_stdin_that_is_not_utf8_is_an_error_of_the_request(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ok\n\xff\n")))
    lines = Lines("strict")
    assert lines.read() == "ok"
    with pytest.raises(RequestError, match=r"line 2 of stdin: is not UTF-8: byte 0xFF at offset 0"):
        lines.read()
