"""The loop: what it learns, what it measures, and that an interruption changes nothing."""

from __future__ import annotations

import math
from itertools import islice

import pytest
import torch

from kinfolk.errors import EngineError, OutputError, RequestError
from kinfolk.train.checkpoint import TrainingCheckpoint
from kinfolk.train.loop import Measured, Training, TrainingOptions, steps_in

OPTIONS = TrainingOptions(batch=2, rate=3e-3, ema=0.9, decay=0.01, seed=4)


def training(make, texts, steps, options=OPTIONS, **drafter):
    return Training(make(**drafter), texts[1:], texts[:1], options, steps)


def weights_of(run):
    return {name: tensor.detach().clone() for name, tensor in run.drafter.parameters.items()}


def test_a_drafter_learns_texts_that_repeat_themselves(make, texts):
    run = training(make, texts, 150)
    before = run.measure().length
    losses = list(run.run())
    assert len(losses) == run.step == 150
    assert sum(losses[-10:]) < sum(losses[:10]) / 3
    seen = Training(run.drafter, texts, texts[1:2], OPTIONS, 1).measure()
    assert seen.length > before + 1.5


def test_an_interrupted_run_is_the_uninterrupted_one_bit_for_bit(make, texts, tmp_path):
    """All that is random in a step depends on its number; sums are in the same order on a CPU."""
    whole = training(make, texts, 12)
    expected = list(whole.run())
    first = training(make, texts, 12)
    losses = list(islice(first.run(), 5))
    TrainingCheckpoint({"a": 1}, training=first.state()).save(tmp_path / "c")
    second = training(make, texts, 99, seed=8)
    second.restore(TrainingCheckpoint.load(tmp_path / "c", {"a": 1}).training)
    assert losses + list(second.run()) == expected
    for kind in (weights_of, lambda run: run.weights()):
        found, wanted = kind(second), kind(whole)
        assert all(found[name].equal(wanted[name]) for name in wanted)
    assert second.measure() == whole.measure()


def test_the_seed_decides_everything(make, texts):
    def losses(seed):
        options = TrainingOptions(batch=2, rate=3e-3, seed=seed)
        return list(training(make, texts, 3, options).run())

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_a_stop_ends_the_run_behind_a_whole_step(make, texts):
    run = training(make, texts, 50)
    assert len(list(run.run(lambda: run.step >= 3))) == 3


def test_measuring_and_timing_change_no_weight(make, texts):
    run = training(make, texts, 6)
    list(islice(run.run(), 3))
    before = weights_of(run)
    run.measure()
    assert steps_in(0.5, run.drafter, texts, OPTIONS) >= 1
    assert all(tensor.equal(before[name]) for name, tensor in run.drafter.parameters.items())


def test_averaged_weights_are_between_the_first_and_the_last(make, texts):
    run = training(make, texts, 20)
    first = weights_of(run)["fc.weight"]
    list(run.run())
    average, last = run.weights()["fc.weight"], weights_of(run)["fc.weight"]
    assert not average.equal(last)
    assert (average - last).norm() < (first - last).norm()


def test_the_rate_warms_up_and_falls(make, texts):
    run = training(make, texts, 100)
    rates = []
    for run.step in range(100):
        rates.append(run.rate())
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.05


def test_the_expected_length_is_the_mean_of_what_is_kept():
    hits = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.int8)
    found = Measured.of(hits)
    assert found.hits == (3 / 4, 2 / 3, 1 / 2)
    kept = [2, 1, 0, 3]
    assert found.length == pytest.approx(1 + sum(kept) / 4)


def test_rows_behind_the_text_count_neither_way():
    found = Measured.of(torch.tensor([[1, -1], [1, 1], [0, -1]], dtype=torch.int8))
    assert found.hits == (2 / 3, 1.0)


def test_a_loss_that_is_not_finite_names_the_step_and_what_to_change(make, texts):
    run = training(make, texts, 5)
    next(run.run())
    run.drafter.parameters["fc.weight"].data.fill_(math.nan)
    with pytest.raises(EngineError, match=r"step 1 is nan.*--learning-rate"):
        next(run.run())


# -- checkpoints ----------------------------------------------------------------------------------


def test_a_checkpoint_of_other_options_is_refused_with_both_values(tmp_path):
    TrainingCheckpoint({"--block": 8, "--seed": 0}).save(tmp_path / "c")
    with pytest.raises(RequestError, match=r"--block 8 there and 16 here.*--restart"):
        TrainingCheckpoint.load(tmp_path / "c", {"--block": 16, "--seed": 0})


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04"])
def test_a_damaged_checkpoint_is_named(tmp_path, content):
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(RequestError, match=r"c: this is no checkpoint.*--restart"):
        TrainingCheckpoint.load(tmp_path / "c", {})


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "c"
    TrainingCheckpoint({"a": 1}).save(path)
    (tmp_path / "c.partial").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        TrainingCheckpoint({"a": 2}).save(path)
    assert TrainingCheckpoint.load(path, {"a": 1}).identity == {"a": 1}
