"""The model in the package answers the first command of the README correctly."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from pocket import exercises
from pocket.textbook.execution import passes

from kinfolk.cli.main import cli

PROMPTS = json.loads(exercises.PROMPTS.read_text(encoding="utf-8"))["seen"]


def answer(prompt: str, *options: str) -> tuple[str, str]:
    """The completion's text and finish reason."""
    result = CliRunner().invoke(cli, ["run", "--json", *options, prompt])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    return said["text"], said["finish_reason"]


@pytest.mark.parametrize("seed", range(3))
def test_the_first_command_of_the_readme_is_answered_right_and_ends(seed: int) -> None:
    text, reason = answer(exercises.FIRST_COMMAND, "--seed", str(seed))
    assert reason == "stop"
    assert passes(f"{exercises.FIRST_COMMAND}{text}\n{exercises.FIBONACCI}\n")


@pytest.mark.parametrize("prompt", PROMPTS[:3], ids=lambda prompt: prompt["task"])
def test_tasks_of_the_textbook_are_solved_in_words_not_seen(prompt: dict[str, str]) -> None:
    text, reason = answer(prompt["text"], "--temperature", "0")
    assert reason == "stop"
    assert passes(f"{prompt['text']}{text}\n\n{prompt['checks']}\n")
