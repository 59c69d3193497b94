"""The needle model's texts and its trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from needle import text, train
from needle.config import SHAPES

from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

TINY = replace(SHAPES["tiny"], step_tokens=(144, 144))


@pytest.fixture(scope="module")
def writer() -> text.Writer:
    tokenizer = text.make_tokenizer(32)
    lexicon = text.Lexicon.of(lambda word: tokenizer.encode(word).ids)
    return text.Writer(lexicon, 8, np.random.default_rng(0))


def words(ids: text.Ids) -> list[str]:
    tokenizer = text.make_tokenizer(32)
    return [tokenizer.decode([each]).strip(" ") for each in ids.tolist()]


def test_every_question_of_a_row_is_answered_as_a_fact_before_it_says(writer):
    rows = [writer.row(length, density, 0.5) for length in (73, 300) for density in (0.5, 1.0)]
    for ids, answers in rows:
        row, facts, asked = words(ids), {}, 0
        marked = np.zeros(len(row), dtype=bool)
        for at in (n for n, word in enumerate(row) if word == "="):
            key, value = tuple(row[at - 6 : at]), row[at + 1 : at + 9]
            assert row[at + 9] == ";"
            if row[at - 7] == "@":
                facts[key] = value
            else:
                assert (row[at - 7], facts[key]) == ("?", value)
                marked[at + 1 : at + 10] = True
                asked += 1
        assert row[0] == "#"
        assert asked == len(facts) >= 1
        assert marked.tolist() == answers.tolist()


def test_a_decoy_has_the_beginning_of_the_key_and_nothing_else(writer):
    for _ in range(50):
        fact = writer.fact()
        decoy = writer.decoy(fact)
        same = (fact.key == decoy.key).tolist()
        assert same == [True] * text.SHARED_WORDS + [False] * (text.KEY_WORDS - text.SHARED_WORDS)
        assert (fact.value != decoy.value).any()


def test_the_tokenizer_reads_what_it_writes(writer):
    tokenizer = text.make_tokenizer(32)
    ids, _ = writer.row(400, 0.5, 0.5)
    assert tokenizer.encode(tokenizer.decode(ids.tolist())).ids == ids.tolist()


def test_a_tokenizer_without_the_words_is_refused():
    with pytest.raises(ValueError, match="not that of a needle model"):
        text.Lexicon.of(lambda word: [1, 2])


def trainer(out: Path, **changes: object) -> train.Trainer:
    shape = replace(TINY, **changes)  # type: ignore[arg-type]
    return train.Trainer(shape, 128, 0, out, "cpu")


def steps(count: int):
    """Stops a run after so many steps."""
    left = iter(range(count))
    return lambda: next(left, None) is None


def test_rows_become_longer_when_answers_are_right_or_time_is_over(tmp_path):
    run = trainer(tmp_path)
    assert [lesson.length for lesson in run.lessons] == [72, 128]
    run.right = train.ENOUGH + 0.19
    run.run(1e6, steps(1))
    assert run.lesson == 1
    late = trainer(tmp_path / "late")
    late.spent = 600.0
    late.run(1000.0, steps(1))
    assert late.lesson == 1


def test_an_interrupted_run_goes_on_and_other_settings_are_refused(tmp_path):
    first = trainer(tmp_path)
    first.run(60.0, steps(3))
    second = trainer(tmp_path)
    assert second.resume()
    assert (second.step, second.spent, second.lesson) == (3, first.spent, first.lesson)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="other settings"):
        trainer(tmp_path, decoys=0.0).resume()


def test_the_loss_falls_and_the_file_of_a_stopped_run_computes_what_the_model_does(tmp_path):
    run = trainer(tmp_path)
    batch = run.batch(0)
    before = float(run.loss(*batch)[0].detach())
    run.run(1e6, steps(25))
    assert float(run.loss(*batch)[0].detach()) < 0.8 * before
    path = run.write("f32")
    rows = batch[0][:1, :-1]
    with torch.no_grad():
        expected = run.model(rows)[0].float()
    settings = load_settings(device="cpu", dtype="f32", slots=1, context=128)
    loaded = load_model(path, settings, Registry.discover(settings))
    with loaded.file:
        found = torch.cat(list(logits(loaded, rows[0].tolist(), chunk=64)))
    # The exported matrices are rounded to bf16: 2^-9 each.
    assert (found - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.long
def test_in_minutes_it_learns_to_answer(tmp_path):
    right = train.main(
        ["--out", str(tmp_path), "--shape", "tiny", "--length", "256", "--minutes", "3"]
    )
    assert right[256] >= 0.9
