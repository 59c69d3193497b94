"""Synthetic files: readable by gguf-py and by us, each different, and stable over many layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.errors import CapacityError, OutputError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.file_types import MIXES
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk.text.tokenizer import Tokenizer


@pytest.mark.parametrize("mix", ["published", *MIXES])
def test_a_file_of_every_mix_is_what_was_planned(mix, small, write):
    plan = plan_synthetic(small, mix=mix)
    reader = GGUFReader(write(plan))
    planned = {tensor.layout.name: tensor for tensor in plan.tensors}
    assert [tensor.name for tensor in reader.tensors] == list(planned)
    for tensor in reader.tensors:
        expected = planned[tensor.name]
        assert tensor.tensor_type.name == expected.kind
        found = dequantize(tensor.data, tensor.tensor_type)
        assert found.shape == expected.layout.shape
        if expected.range is None:
            few = found.size < 10_000
            near = pytest.approx(expected.deviation, rel=0.25 if few else 0.06)
            assert found.std() == near, tensor.name
        else:
            low, high = expected.range
            assert low <= found.min() <= found.max() <= high, tensor.name


def test_no_two_tensors_are_alike(small, write):
    with GGUFFile.open(write(plan_synthetic(small, layers=8))) as file:
        contents = [file.inventory.bytes(name).tobytes() for name in file.inventory]
    assert len(set(contents)) == len(contents)
    heads = [content[:64] for content in contents]
    assert len(set(heads)) == len(heads)


def test_no_two_experts_are_alike(small_with, write):
    shape = small_with(
        ("token_embd.weight", (1024, 256)), ("blk.0.ffn_up_exps.weight", (64, 8, 256))
    )
    with GGUFFile.open(write(shape)) as file:
        experts = file.inventory.bytes("blk.0.ffn_up_exps.weight").reshape(64, -1)
    assert len(np.unique(experts, axis=0)) == 64


def test_the_seed_decides_the_file_and_the_threads_do_not(small, write, monkeypatch):
    monkeypatch.setattr("kinfolk.synth.write.PIECE_BYTES", 10_000)
    one = write(small, "one.gguf", workers=1).read_bytes()
    assert write(small, "three.gguf", workers=3).read_bytes() == one
    other = write(small, "other.gguf", seed=1).read_bytes()
    assert len(other) == len(one)
    assert other != one


def test_activations_stay_sane_over_64_layers(small, write):
    settings = load_settings(device="cpu", dtype="f32", context=128, slots=1)
    path = write(plan_synthetic(small, layers=64))
    loaded = load_model(path, settings, Registry.discover(settings))
    found = torch.cat(list(logits(loaded, list(range(100)))))
    assert found.isfinite().all()
    assert 0.5 < float(found.std()) < 2
    # Different positions give different logits: no direction dominates the others.
    similarity = torch.nn.functional.cosine_similarity(found[10], found[90], dim=0)
    assert abs(float(similarity)) < 0.9


def test_the_tokenizer_encodes_every_text_and_gives_it_back(small, write, family):
    with GGUFFile.open(write(small)) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata, [family])
    for text in ("the other ant\n", "x = 12345", "naïve 中文 🙂 \x00", "<think>a<|end|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("the other ant\n")) < len("the other ant\n")
    assert tokenizer.encode("<think>a<|end|>")[0] == 1001
    assert tokenizer.encode("<think>a<|end|>")[-1] == 1000


def test_two_layers_of_a_released_size_load_elsewhere_and_here(family, write, monkeypatch):
    plan = plan_synthetic(find_shape("qwen3.5-0.8b", [family]), layers=2)
    path = write(plan)
    assert 0 <= path.stat().st_size - plan.nbytes < 16e6
    with monkeypatch.context() as patch:
        # Half a million strings are cut out of its array: mapped memory takes thrice as long.
        patch.setattr(np, "memmap", lambda file, mode: np.fromfile(file, np.uint8))
        reader = GGUFReader(path)
    assert reader.get_field("general.architecture").contents() == "qwen35"
    assert len(reader.get_field("tokenizer.ggml.tokens").data) == 248320
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    assert embedding.tensor_type.name == "Q6_K"
    assert embedding.shape.tolist() == [1024, 248320]
    with GGUFFile.open(path) as file:
        config = family.read_config(file.metadata)
        weights = family.weight_plan(config, file.inventory)
        assert {spec.tensor for spec in weights} <= set(file.inventory)
        Tokenizer.from_metadata(file.metadata, [family])
    path.unlink()


# -- the place of the file ------------------------------------------------------------------------


def test_an_existing_file_is_replaced_only_when_asked(small, write, tmp_path):
    (tmp_path / "model.gguf").write_text("precious")
    with pytest.raises(OutputError, match="exists"):
        write(small)
    assert (tmp_path / "model.gguf").read_text() == "precious"
    assert write(small, overwrite=True).read_bytes()[:4] == b"GGUF"


def test_an_interruption_leaves_nothing(small, write, tmp_path):
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(small, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_noticed_before_weights_are_written(small, write, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 100_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(CapacityError, match="GB are free"):
        write(small)
    assert list(tmp_path.iterdir()) == []


def test_progress_ends_at_the_whole(small, write):
    seen: list[tuple[int, int]] = []
    write(small, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == plan_synthetic(small).nbytes
