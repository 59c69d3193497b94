"""Tables of steps by their rows, and of drafts whose acceptance is planted."""

from __future__ import annotations

import json

import pytest

from kinfolk.cli.bench_drafts import full_length
from kinfolk.sched.draft_counts import DraftTally
from kinfolk.spec.dflash import tiny

SMALL = ("--prompt", 9, "--generate", 8, "--repeats", 1)
INVALID = "output invalid: "


@pytest.fixture(scope="session")
def drafter(model, tmp_path_factory):
    """A drafter of four tokens for the model, of random weights."""
    path = tmp_path_factory.mktemp("drafter") / "draft.gguf"
    tiny.write(model, path)
    return path


def test_widths_has_the_rows_asked_for_and_what_a_drafter_adds(kinfolk, model, drafter):
    arguments = ("-m", model, "--widths", "4,2,8", "--draft-model", drafter, "--json")
    result = kinfolk("bench", *arguments, *SMALL, "--graphs", "on")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    rows = {row["rows"]: row for row in report["widths"]}
    assert list(rows) == [1, 2, 4, 8]
    one = rows[1]["step_milliseconds"]
    for count, row in rows.items():
        step, drafted = row["step_milliseconds"], row["drafted_step_milliseconds"]
        assert row["ratio"] == pytest.approx(step / one, abs=1e-3)
        assert (drafted is not None) == (count in (2, 4))
        if drafted is not None:
            assert row["draft_milliseconds"] == pytest.approx(drafted - step, abs=1e-3)
            assert row["break_even_tokens"] == pytest.approx(drafted / one, abs=1e-3)
    assert rows[1]["break_even_tokens"] == 1
    assert rows[8]["break_even_tokens"] is None  # the drafter has only four tokens
    assert report["drafter"]["chain"] == report["drafter"]["depth"] == 4
    assert report["drafter"]["off_step_milliseconds"] > 0
    assert report["drafter"]["without_step_milliseconds"] > 0
    assert report["workload"]["prompt"] == 9
    # One step of the warm-up and one of the repeat for each token but the first.
    assert report["engine"]["eager_steps"] == 0
    assert report["engine"]["replays"] >= 4 * 2 * 8
    assert report["machine"]["device"] == "cpu"
    assert INVALID not in result.output


def test_widths_without_a_drafter_is_a_table_of_rows(kinfolk, model):
    result = kinfolk("bench", "-m", model, "--widths", "3", *SMALL)
    assert result.exit_code == 0, result.stderr
    head, *rows = result.stdout.split("\n\n")[1].splitlines()
    assert head.split() == ["rows", "step", "ratio", "break", "even"]
    assert [row.split()[0] for row in rows] == ["1", "3"]
    assert rows[0].split()[2:] == ["1.000", "1.000"]


@pytest.mark.parametrize("mode", [(), ("--draft-mode", "tree", "--draft-widths", "fixed")])
def test_plant_accepts_what_is_asked_and_marks_the_output(kinfolk, model, drafter, mode):
    arguments = ("-m", model, "--plant", "1,5", "--draft-model", drafter, "--sequences", 2, *mode)
    result = kinfolk("bench", *arguments, *SMALL, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["output_invalid"].startswith(INVALID)
    plain, none, every = report["planted"]
    assert plain["planted"] is plain["full_length"] is None
    assert plain["tokens_per_step"] == plain["rows_per_step"] == plain["ratio"] == 1
    assert (none["planted"], none["chance"], none["full_length"]) == (1, 0, 1)
    assert none["tokens_per_step"] == 1
    assert (every["planted"], every["chance"]) == (5, 1)
    assert every["tokens_per_step"] > 1
    assert none["output_invalid"] is every["output_invalid"] is True
    assert "output_invalid" not in plain
    speeds = [row["generate_tokens_per_second"] for row in report["planted"]]
    assert every["ratio"] == pytest.approx(speeds[2] / speeds[0], abs=1e-3)
    assert report["draft_widths"] == ("fixed" if mode else "cost")
    if mode:
        assert every["full_length"] == 5


def test_the_text_of_plant_begins_with_the_mark(kinfolk, model, drafter):
    result = kinfolk("bench", "-m", model, "--plant", "2", "--draft-model", drafter, *SMALL)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(INVALID)
    head, plain, row = result.stdout.split("\n\n")[2].splitlines()
    assert head.split()[:4] == ["planted", "chance", "full", "depth"]
    assert (plain.split()[0], row.split()[0]) == ("none", "2")


def test_the_length_at_full_depth_is_not_lowered_by_the_end_of_an_answer():
    tally = DraftTally()
    for depth, accepted in [(3, 3), (3, 1), (2, 2), (1, 0), (3, 0), (1, 1)]:
        tally.add(depth, depth, accepted, accepted + 1)
    # 4 of 6 accept the first token, 2 of 3 that have room the second, 1 of 1 the third.
    expected = 1 + 4 / 6 + 4 / 6 * 2 / 3 + 4 / 6 * 2 / 3
    assert full_length(tally.counts("chain")) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--widths", "65"), "of numbers up to 64"),
        (("--widths", "0"), "'0' is not a list like 1,4,16"),
        (("--plant", "0.5"), "'0.5' is not a list like 7.7,5.5,3"),
        (("--plant", "nan"), "'nan' is not a list"),
        (("--widths", "2", "--rows", 4), "--rows does not go with --widths"),
        (("--widths", "2", "--plant", "2"), "--widths does not go with --plant"),
        (("--http", "--plant", "2"), "--plant does not go with --http"),
        (("--widths", "2", "--batch-invariant"), "--widths: nothing can be drafted"),
        (("--widths", "9", "--prompt", 4090, "--generate", 2), "--generate 2 and 8 drafted rows"),
        (("--plant", "2"), "--plant runs a drafter with weights, and there is none"),
    ],
)
def test_what_cannot_be_measured_is_refused(kinfolk, model, options, said):
    result = kinfolk("bench", "-m", model, *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_length_that_the_drafter_cannot_have_is_refused_with_the_numbers(kinfolk, model, drafter):
    result = kinfolk("bench", "-m", model, "--plant", "2,5.5", "--draft-model", drafter)
    assert result.exit_code == 2
    assert "length of 5.5 tokens a step: with drafts of 4 tokens" in result.stderr


POLICY = """
from kinfolk import hookimpl
from kinfolk.descriptors import PolicySpec

class Verifies:
    @hookimpl
    def verify(self, step, draft, sampling):
        return None

@hookimpl
def register_policies():
    return [PolicySpec("verifies", create="made_strict:create", summary="verifies")]

def create(info):
    return Verifies()
"""


def test_plant_does_not_go_with_a_policy_that_verifies(kinfolk, model, drafter, install):
    install("strict", POLICY)
    arguments = ("--policy", "verifies", "--plant", "2", "--draft-model", drafter)
    result = kinfolk("bench", "-m", model, *arguments)
    assert result.exit_code == 2
    assert "--plant cannot replace what a policy accepts (--policy verifies)" in result.stderr
