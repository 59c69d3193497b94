"""Whole runs: the file drafts in the engine, an interrupted run gives the same file."""

from __future__ import annotations

import json

import pytest
import torch
from training_runs import Notes, generated

from kinfolk.engine.loading import load_model
from kinfolk.engine.runtime import Runtime
from kinfolk.errors import RequestError
from kinfolk.sched.events import Emitted
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings
from kinfolk.train.checkpoint import TrainingCheckpoint, checkpoint_path
from kinfolk.train.continuations import Continuing, continued
from kinfolk.train.options import TrainOptions
from kinfolk.train.prepared import prepare_run
from kinfolk.train.run import TrainingRun
from kinfolk.train.texts import Text

CASE = "qwen35"
SMALL = {
    "steps": 8, "length": 48, "block": 4, "layers": 2, "head_dim": 16, "batch": 2, "anchors": 8,
    "learning_rate": 3e-3, "outtype": "f32",
}  # fmt: skip
PROMPTS = ["def one", "class Two", "import three", "for four", "while five", "return six"]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text * 9}) + "\n" for text in PROMPTS))
    return path


@pytest.fixture
def run(cases, registry, data):
    """``run(out, stop=, case=, **options)``: a prepared run, and the notes that it will take."""

    def make(out, stop=lambda: False, case=CASE, **options):
        settings = load_settings(device="cpu", dtype="f32")
        chosen = TrainOptions(**{**SMALL, **options})
        prepared = prepare_run(cases / f"{case}.gguf", [data], chosen, settings, registry)
        return TrainingRun(prepared, chosen, settings, registry, out, Notes(), stop)

    return make


@pytest.mark.parametrize("case", ["qwen35", "gemma4", "laguna"])
def test_the_file_drafts_and_the_output_is_that_without_it(case, run, tmp_path, cases, registry):
    out = tmp_path / "draft.gguf"
    trained = run(out, case=case, continue_=24, steps=30).run()
    assert trained.steps == 30
    assert trained.nbytes == out.stat().st_size
    assert not checkpoint_path(out).exists()

    def load(**changes):
        options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 2, **changes}
        return load_model(cases / f"{case}.gguf", load_settings(**options), registry)

    prompt = list(range(40, 52))
    for sampling in (Sampling(), Sampling(temperature=0.9, seed=3)):
        plain, _ = generated(load(), prompt, sampling)
        drafted, usage = generated(load(draft_model=out), prompt, sampling)
        assert drafted == plain
        assert usage.drafted > 0


def test_what_was_learned_is_kept_by_the_engine(run, tmp_path, cases, registry):
    """The drafter of one text that the model continues: most drafts are kept, which any confusion
    of positions, layers or names on the way to the file would prevent."""
    out = tmp_path / "draft.gguf"
    job = run(out, continue_=30, steps=150, anchors=16, batch=4)
    texts = []
    train = job._training
    job._training = lambda drafter, known, held_out, checkpoint: (
        texts.extend(known) or train(drafter, known, held_out, checkpoint)
    )
    job.run()
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 2, "draft_model": out}
    loaded = load_model(cases / f"{CASE}.gguf", load_settings(**options), registry)
    text = texts[0]
    tokens, usage = generated(loaded, text.tokens[: text.first], Sampling(), 30)
    assert tokens == list(text.tokens[text.first :])
    assert usage.steps < 15


def test_an_interrupted_run_writes_the_same_file(run, tmp_path):
    whole, parts = tmp_path / "whole.gguf", tmp_path / "parts.gguf"
    run(whole, name="x").run()
    calls = []
    stopped = run(parts, stop=lambda: calls.append(1) or len(calls) > 10, name="x")
    assert stopped.run() is None
    assert not parts.exists()
    assert checkpoint_path(parts).exists()
    second = run(parts, name="x")
    assert second.run() is not None
    assert any("going on after step" in line for line in second.report.lines)
    assert parts.read_bytes() == whole.read_bytes()


def test_continuations_that_were_written_are_not_written_again(run, tmp_path, monkeypatch):
    out = tmp_path / "draft.gguf"
    first = run(out, continue_=20)
    first.stop = lambda: any("continued" in what for *_, what in first.report.calls)
    assert first.run() is None
    before = TrainingCheckpoint.load(checkpoint_path(out), first.prepared.identity).texts
    assert 0 < len(before) <= len(PROMPTS)
    second = run(out, continue_=20)
    second._train = lambda training, checkpoint: False
    assert second.run() is None
    after = TrainingCheckpoint.load(checkpoint_path(out), first.prepared.identity).texts
    assert len(after) == len(PROMPTS)
    assert all(after[n] == text for n, text in before.items())


def test_another_model_of_the_same_name_and_size_is_another_target(cases, registry, data, tmp_path):
    other = tmp_path / "other.gguf"
    content = bytearray((cases / f"{CASE}.gguf").read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)
    settings, options = load_settings(device="cpu", dtype="f32"), TrainOptions(**SMALL)
    identities = [
        prepare_run(path, [data], options, settings, registry).identity
        for path in (cases / f"{CASE}.gguf", other)
    ]
    different = {key for key in identities[0] if identities[0][key] != identities[1][key]}
    assert different == {"-m"}


def test_continuations_are_what_the_model_says(cases, registry):
    settings = load_settings(device="cpu", dtype="f32", context=64, slots=3)
    with Runtime.open(cases / f"{CASE}.gguf", settings, registry) as runtime:
        prompts = {n: Text(tuple(range(5 + n, 12 + 2 * n))) for n in range(8)}
        found = dict(continued(runtime, prompts, Continuing(12)))
        assert sorted(found) == sorted(prompts)
        for number, text in found.items():
            prompt = prompts[number].tokens
            request = Request("alone", prompt, 12, stop=runtime.tokenizer.eog)
            events = list(runtime.engine.submit(request))
            alone = [t for event in events if isinstance(event, Emitted) for t in event.tokens]
            assert text == Text((*prompt, *alone), len(prompt))


def test_a_model_that_ends_at_once_is_named(run, tmp_path, monkeypatch):
    job = run(tmp_path / "draft.gguf", continue_=20)
    ended = {n: Text((1, 2, 3), 2) for n in range(len(PROMPTS))}
    monkeypatch.setattr("kinfolk.train.run.continued", lambda *_: ended.items())
    with pytest.raises(RequestError, match="--continue"):
        job.run()


def test_a_drafter_in_the_environment_is_left_out(run, tmp_path):
    first = run(tmp_path / "one.gguf")
    assert first.run() is not None
    job = run(tmp_path / "two.gguf", continue_=20)
    job.settings = job.settings.model_copy(update={"draft_model": tmp_path / "one.gguf"})
    assert job.run() is not None


def test_a_short_queue_does_not_end_the_continuations(run, tmp_path):
    job = run(tmp_path / "draft.gguf", continue_=8, sequences=2)
    job.settings = job.settings.model_copy(update={"max_queue": 0})
    assert job.run() is not None


def test_it_says_how_far_it_is(run, tmp_path):
    job = run(tmp_path / "draft.gguf", steps=40)
    job.run()
    lines = job.report.lines
    assert lines[0].startswith("40 steps, ")
    assert "expected length" in lines[1]
    assert lines[-1].startswith("step 40 of 40, ")
    assert (40, 40) in [call[:2] for call in job.report.calls]


def test_seconds_become_steps(run, tmp_path):
    trained = run(tmp_path / "draft.gguf", steps=None, seconds=0.5).run()
    assert trained.steps >= 1
    torch.testing.assert_close(torch.tensor(trained.measured.length).isfinite(), torch.tensor(True))
