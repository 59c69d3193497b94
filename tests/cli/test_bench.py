"""The parts of a repeat that are measured, by a clock that advances at every call."""

from __future__ import annotations

import itertools
import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinfolk.cli import bench_http, bench_runs
from kinfolk.errors import EngineError, SettingsError
from kinfolk.sched.events import Emitted, Finished, Usage
from kinfolk.sched.request import FinishReason


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    seconds = itertools.count(1)
    monkeypatch.setattr(bench_runs.time, "perf_counter", lambda: next(seconds))


def emitted(request, count=1):
    return Emitted(request, (7,) * count)


def finished(request, count):
    usage = Usage(prompt=3, reused=0, emitted=count, steps=count - 1)
    return Finished(request, FinishReason.LENGTH, usage)


def watch(work, *events):
    return bench_runs.watch(iter(events).__next__, work, 0)


def test_the_clock_runs_from_the_first_token_to_the_last():
    work = bench_runs.Workload(3, 3, 1, 0.0)
    run = watch(work, *[emitted("a")] * 3, finished("a", 3))
    assert run == bench_runs.Run(prompt=1, decode=2, steps=2)


def test_it_starts_when_every_sequence_has_its_first_token():
    work = bench_runs.Workload(3, 3, 2, 0.0)
    turns = [emitted("a"), emitted("a"), emitted("b"), emitted("a"), emitted("b"), emitted("b")]
    run = watch(work, *turns, finished("a", 3), finished("b", 3))
    assert run == bench_runs.Run(prompt=3, decode=3, steps=2)


def test_steps_that_have_no_room_for_all_rows_are_not_measured():
    work = bench_runs.Workload(3, 3, 1, 0.0, rows=4)
    assert work.max_new == 6
    run = watch(work, *[emitted("a")] * 6, finished("a", 6))
    assert run == bench_runs.Run(prompt=1, decode=2, steps=2)


def test_a_draft_that_is_accepted_after_all_is_no_step():
    work = bench_runs.Workload(3, 4, 1, 0.0, rows=4)
    run = watch(work, emitted("a"), emitted("a", 2), *[emitted("a")] * 4, finished("a", 7))
    assert run == bench_runs.Run(prompt=1, decode=2, steps=2)


def test_a_request_that_ends_early_is_an_error():
    with pytest.raises(EngineError, match="ended too early"):
        watch(bench_runs.Workload(3, 3, 1, 0.0), emitted("a"), finished("a", 1))


EXPERTS = ("--device", "cpu", "--expert-budget", "30%", "--prompt", "8", "--generate", "2")


def test_random_tokens_are_not_added_to_a_profile(kinfolk, cases, tmp_path):
    path, model = tmp_path / "p.json", cases / "laguna.gguf"
    options = ("-m", model, *EXPERTS, "--repeats", "1", "--expert-profile", path)
    counted = kinfolk("bench", *options)
    assert counted.exit_code == 0, counted.stderr
    assert "% near" in counted.stdout
    assert kinfolk("bench", *options, "--widths", "1").exit_code == 0
    checked = kinfolk("doctor", "-m", model, "--device", "cpu", "--expert-profile", path)
    assert "tokens in" in checked.stdout
    assert list(tmp_path.iterdir()) == []


def test_experts_that_nobody_counts_are_not_reported(kinfolk, cases):
    model = cases / "laguna.gguf"
    options = ("-m", model, *EXPERTS, "--repeats", "1", "--expert-swap", "off")
    result = kinfolk("bench", *options)
    assert "not counted (--expert-swap off without --expert-profile)" in result.stdout
    report = json.loads(kinfolk("bench", *options, "--json").stdout)
    assert report["expert_use"] == {}
    assert "expert_hits" not in report["engine"]


def test_a_server_that_is_measured_writes_a_copy_of_the_profile(
    kinfolk, model, tmp_path, monkeypatch
):
    path, found = tmp_path / "p.json", []
    path.write_text("counts")

    @contextmanager
    def server_process(arguments):
        copy = Path(arguments[-1])
        found.append((arguments[-2], copy, copy.read_text()))
        raise EngineError("enough")
        yield

    monkeypatch.setattr(bench_http, "server_process", server_process)
    result = kinfolk("bench", "--http", "-m", model, "--expert-profile", path)
    assert "enough" in result.stderr
    ((flag, copy, text),) = found
    assert (flag, text) == ("--expert-profile", "counts")
    assert copy != path
    assert not copy.exists()
    with pytest.raises(SettingsError, match="cannot be read"), bench_http.profile_copy(tmp_path):
        pass
    with bench_http.profile_copy(None) as flags:
        assert flags == []
