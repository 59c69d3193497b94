"""Stdin, stdout and stderr that are closed, full, or a pipe whose reader has left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FULL = "/dev/full"
EXIT_BROKEN_PIPE = 141


@pytest.fixture
def shell(tmp_path):
    """``shell("run", ..., stdout="closed")``: the program with streams that are spoiled.

    A stream is ``closed``, ``full`` or, for output, ``broken``: a pipe whose reader has left.
    """

    def run(*arguments, stdin=None, stdout=None, stderr=None, unbuffered=False):
        asked = {0: stdin, 1: stdout, 2: stderr}
        descriptors = {number: opened(how, tmp_path) for number, how in asked.items()}
        closed = [number for number, how in asked.items() if how == "closed"]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        try:
            return subprocess.run(
                [sys.executable, "-m", "kinfolk", *map(str, arguments)],
                cwd=tmp_path,
                env=environment | ({"PYTHONUNBUFFERED": "1"} if unbuffered else {}),
                stdin=descriptors[0] or subprocess.DEVNULL,
                stdout=descriptors[1] or subprocess.PIPE,
                stderr=descriptors[2] or subprocess.PIPE,
                preexec_fn=lambda: [os.close(number) for number in closed],
                text=True,
                timeout=60,
            )
        finally:
            for descriptor in filter(None, descriptors.values()):
                os.close(descriptor)

    return run


def opened(how, folder):
    """A descriptor for a spoiled stream; those to be closed begin as an empty file."""
    if how == "full":
        return os.open(FULL, os.O_RDWR)
    if how == "closed":
        return os.open(folder / "unused", os.O_RDWR | os.O_CREAT)
    if how == "broken":
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return None


@pytest.fixture(params=["help", "version", "plugins", "inspect", "tokenize", "synth", "new-family"])
def printing(request, model):
    """The arguments of a command that prints and is quick."""
    return {
        "help": ("--help",),
        "version": ("--version",),
        "plugins": ("plugins", "--json"),
        "inspect": ("inspect", model),
        "tokenize": ("tokenize", model, "--text", "Hello"),
        "synth": ("synth", "--list"),
        "new-family": ("new-family", "olive"),
    }[request.param]


# -- stdout ---------------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_ends_with_1(shell, printing):
    done = shell(*printing, stdout="full")
    assert (done.returncode, done.stderr) == (1, "error: stdout: No space left on device\n")


def test_a_closed_stdout_loses_nothing_in_silence(shell, printing):
    done = shell(*printing, stdout="closed")
    assert (done.returncode, done.stderr) == (1, "error: stdout is closed\n")


def test_a_reader_that_has_left_ends_the_program_quietly(shell, printing):
    done = shell(*printing, stdout="broken")
    assert (done.returncode, done.stderr) == (EXIT_BROKEN_PIPE, "")


@pytest.mark.parametrize(
    ("how", "code"), [("full", 1), ("closed", 1), ("broken", EXIT_BROKEN_PIPE)], ids=str
)
def test_an_answer_that_cannot_be_printed_is_no_success(shell, model, how, code):
    done = shell("run", "-m", model, "-n", 3, "--temperature", 0, "Hi", stdout=how)
    assert done.returncode == code
    assert "bug" not in done.stderr
    assert done.stderr.count("\n") == (how != "broken")


def test_a_conversation_does_not_go_on_without_stdout(kinfolk, chat_model, monkeypatch):
    """Lost output is not an error of one question, after which the next could be answered."""
    from kinfolk.cli import chat
    from kinfolk.cli.streams import OutputLost

    def fail(*arguments, **options):
        raise OutputLost("stdout is closed")

    monkeypatch.setattr(chat.click, "echo", fail)
    result = kinfolk("chat", "-m", chat_model, "-n", 2, stdin="one\ntwo\n")
    assert result.exit_code == 1


def test_checks_end_with_the_reader_of_their_results(shell):
    done = shell("check", "qwen35", "-k", "usable", stdout="full")
    assert (done.returncode, done.stderr) == (1, "error: stdout: No space left on device\n")


def test_output_that_nobody_flushed_is_noticed_at_the_end(shell, install):
    install("writer", WRITER)
    done = shell("write", stdout="full")
    assert (done.returncode, done.stderr) == (1, "error: stdout: No space left on device\n")


WRITER = """
import sys, click
from kinfolk import hookimpl

@hookimpl
def register_commands(cli):
    @cli.command()
    def write():
        sys.stdout.write("text")
"""


def test_without_a_buffer_the_same_is_said(shell):
    done = shell("--version", stdout="full", unbuffered=True)
    assert (done.returncode, done.stderr) == (1, "error: stdout: No space left on device\n")


def test_a_name_that_is_no_text_is_printed_all_the_same(model, tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.gguf"
    with open(path, "wb") as copy:
        copy.write(model.read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "kinfolk", "inspect", "--no-tensors", path],
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\udcff.gguf" in done.stdout.splitlines()[0]


# -- stdin ----------------------------------------------------------------------------------------


def test_a_closed_stdin_that_is_needed_is_told(shell, model):
    done = shell("tokenize", model, stdin="closed")
    assert (done.returncode, done.stderr) == (2, "error: stdin is closed\n")


def test_a_prompt_is_not_read_from_a_closed_stdin(shell, model):
    done = shell("run", "-m", model, stdin="closed")
    assert (done.returncode, done.stderr) == (2, "error: stdin is closed\n")


def test_a_conversation_needs_stdin(shell, chat_model):
    done = shell("chat", "-m", chat_model, stdin="closed")
    assert (done.returncode, done.stderr) == (2, "error: stdin is closed\n")


def test_a_closed_stdin_that_is_not_needed_is_no_matter(shell, model):
    done = shell("run", "-m", model, "-n", 2, "--temperature", 0, "Hi", stdin="closed")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Hi")


# -- stderr ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "full", "broken"])
def test_what_nobody_hears_changes_nothing(shell, model, how, monkeypatch):
    monkeypatch.setenv("KINFOLK_SLOT", "3")  # is warned about
    done = shell("tokenize", model, "--text", "Hello", "--json", stderr=how)
    assert done.returncode == 0
    assert done.stdout.startswith("[")


@pytest.mark.parametrize("how", ["closed", "full", "broken"])
@pytest.mark.parametrize(("arguments", "code"), [(("nothing",), 2), (("inspect", "no.gguf"), 2)])
def test_errors_that_nobody_hears_are_still_exit_codes(shell, arguments, code, how):
    assert shell(*arguments, stderr=how).returncode == code


def test_without_stderr_a_traceback_does_not_go_to_stdout(shell):
    done = shell("--debug", "inspect", "no.gguf", stderr="closed")
    assert (done.returncode, done.stdout) == (2, "")


def test_no_file_takes_the_place_of_a_stream_that_was_closed(shell, install, tmp_path):
    """Otherwise the output of a library would be written into a model."""
    install("opener", OPENER)
    shell("open", stdin="closed", stdout="closed", stderr="closed")
    assert int((tmp_path / "number").read_text()) > 2


OPENER = """
import sys, click
from kinfolk import hookimpl

@hookimpl
def register_commands(cli):
    @cli.command()
    def open():
        import io
        with io.open("number", "w") as file:
            file.write(str(file.fileno()))
"""
