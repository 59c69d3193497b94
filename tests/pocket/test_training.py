"""The parts of training: rows, optimiser, the 4-bit grid, checkpoints, scoring, export."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pocket import data, export, scoring, tokenizer
from pocket.config import ModelConfig, Stage, TrainConfig
from pocket.model import PocketModel
from pocket.optimizer import orthogonalise
from pocket.rows import Rows
from pocket.sampling import Sampling, complete, distribution
from pocket.snap import in_q4_k, q4_k, snap
from pocket.train import Trainer

TINY = ModelConfig(
    vocab_size=320, hidden_size=64, intermediate_size=64, num_hidden_layers=4, head_dim=32,
    num_attention_heads=2, num_key_value_heads=1, mrope_section=(2, 1, 1),
    linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=16,
    linear_value_head_dim=16,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A training folder as ``pocket.data`` writes it, made of a few generated functions."""
    texts = [f"def f{i}(x):\n    y = x + {i}\n    return y * {i}\n" for i in range(200)]
    plain = tokenizer.train(texts, 320)
    special = tokenizer.with_specials(plain)
    special.save(str(tmp_path / "tokenizer.json"))
    end = tokenizer.end_of_text(special)
    documents = [[np.array(plain.encode(text).ids, np.uint16)] for text in texts]
    tokens, starts = data.lay_out(documents, end, 0)
    np.save(tmp_path / "train.npy", tokens)
    np.save(tmp_path / "starts.npy", starts)
    with gzip.open(tmp_path / "validation.jsonl.gz", "wt", encoding="utf-8") as out:
        out.write(json.dumps({"distribution": "d", "path": "p", "text": texts[0]}) + "\n")
    return tmp_path


def config(**changes: object) -> TrainConfig:
    plan = TrainConfig(
        steps=12, batch_tokens=256, stages=(Stage(0.5, 64), Stage(1.0, 128)), warmup_steps=2,
        eval_every=100, save_every=5, log_every=4, compile=False, model=TINY,
    )  # fmt: skip
    return replace(plan, **changes)  # type: ignore[arg-type]


def trainer(folder: Path, name: str, **changes: object) -> Trainer:
    return Trainer(config(**changes), folder, folder / name, torch.device("cpu"))


def test_a_resumed_run_ends_where_an_unbroken_one_does(folder: Path) -> None:
    whole, first = trainer(folder, "whole"), trainer(folder, "broken")
    whole.run()
    first.run(until=7)
    second = trainer(folder, "broken")
    assert second.resume()
    assert second.step == 5
    second.run()
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_of_other_settings_is_refused(folder: Path) -> None:
    trainer(folder, "out").run(until=5)
    with pytest.raises(ValueError, match="other settings"):
        trainer(folder, "out", muon_lr=1.0).resume()


def test_training_learns_and_ends_on_the_grid(folder: Path) -> None:
    run = trainer(folder, "out", steps=40)
    before = run.bits_per_byte(run.validation)
    run.run()
    assert run.bits_per_byte(run.validation) < 0.8 * before
    assert (folder / "out" / "hf" / "config.json").exists()


def test_rows_begin_at_starts_and_follow_from_the_step_alone() -> None:
    tokens = torch.arange(1000, dtype=torch.int32)
    starts = np.arange(0, 1000, 7)
    rows, again = Rows(tokens, starts, seed=3), Rows(tokens, starts, seed=3)
    batches = [rows.batch(i, 4, 40) for i in range(20)]
    assert torch.equal(again.batch(11, 4, 40), batches[11])
    assert all((batch[:, 0] % 7 == 0).float().mean() >= 0.5 for batch in batches)
    assert all(torch.equal(b[:, 1:], b[:, :-1] + 1) for b in batches)
    epoch = torch.cat(batches)[: rows.epoch_rows(40), 0]
    assert epoch.unique().numel() >= 0.9 * len(epoch)


def test_muon_updates_have_singular_values_near_one() -> None:
    matrices = torch.randn(3, 48, 96, generator=torch.Generator().manual_seed(0))
    for update in (matrices, matrices.mT):
        values = torch.linalg.svdvals(orthogonalise(update))
        assert values.min() > 0.5
        assert values.max() < 1.4


def test_snapped_weights_stay_where_they_are() -> None:
    weight = torch.randn(8, 512, generator=torch.Generator().manual_seed(1))
    once = q4_k(weight)
    assert (once - weight).norm() <= 0.1 * weight.norm()
    assert (q4_k(once) - once).norm() <= 2e-3 * once.norm()
    assert torch.equal(q4_k(torch.zeros(2, 256)), torch.zeros(2, 256))


def test_the_file_holds_snapped_weights() -> None:
    from gguf import GGMLQuantizationType, dequantize

    from kinfolk.quant.encode_k import quantize_q4_k

    weight = q4_k(torch.randn(16, 512, generator=torch.Generator().manual_seed(2)))
    stored = dequantize(quantize_q4_k(weight.numpy()), GGMLQuantizationType.Q4_K)
    assert np.linalg.norm(stored.reshape(16, 512) - weight.numpy()) <= 1e-3 * weight.norm()


def test_matrices_that_the_mix_keeps_at_six_bits_are_not_snapped() -> None:
    shape = ModelConfig()
    kept = [i for i in range(8) if not in_q4_k(f"model.layers.{i}.mlp.down_proj.weight", shape)]
    assert kept == [0, 3, 6, 7]
    assert in_q4_k("model.layers.0.mlp.up_proj.weight", shape)
    assert not in_q4_k("model.embed_tokens.weight", shape)
    assert not in_q4_k("model.layers.0.linear_attn.in_proj_a.weight", shape)


def test_output_columns_are_snapped_in_the_order_of_the_file() -> None:
    shape = ModelConfig()
    name = "model.layers.0.linear_attn.out_proj.weight"
    weight = torch.randn(4, 512, generator=torch.Generator().manual_seed(4))
    order = torch.cat([torch.arange(128) + 128 * head for head in (0, 2, 1, 3)])
    assert torch.equal(snap(name, weight, shape)[:, order], q4_k(weight[:, order]))


def test_windows_score_every_token_once() -> None:
    ids = list(range(1, 1001))
    cut = scoring.windows(ids, end=0, window=100, overlap=30)
    scored = [int(x) for w in cut for x in w.ids[w.first :]]
    assert scored == ids
    assert all(len(w.ids) <= 100 for w in cut)
    assert all(w.first == 30 for w in cut[1:])
    assert len(scoring.windows([], 0)) == 0


def test_scores_do_not_depend_on_batches_and_equal_those_of_logits() -> None:
    torch.manual_seed(0)
    model = PocketModel(TINY).eval()
    ids = torch.randint(0, 320, (150,)).tolist()
    cut = scoring.windows(ids, 0, window=64, overlap=16) + scoring.windows(ids[:20], 0)
    small = list(scoring.TorchScorer(model, 64).nats(cut))
    large = list(scoring.TorchScorer(model, 10_000).nats(cut))
    assert small == pytest.approx(large, rel=1e-5)
    with torch.no_grad():
        logits = [model(torch.from_numpy(w.ids)[None])[0].log_softmax(1) for w in cut]
    by_logits = [
        -float(rows[w.first - 1 : -1].gather(1, torch.from_numpy(w.ids[w.first :])[:, None]).sum())
        for rows, w in zip(logits, cut, strict=True)
    ]
    assert small == pytest.approx(by_logits, rel=1e-5)


def test_bits_per_byte_counts_bytes() -> None:
    assert scoring.Score(math.log(2) * 6, 3, 2).bits_per_byte == pytest.approx(2.0)


def test_sampling_keeps_what_it_says() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    seen = torch.tensor([[True, False, False, False]])
    plain = distribution(logits, seen, Sampling(temperature=1.0))
    torch.testing.assert_close(plain, logits.exp())
    assert distribution(logits, seen, Sampling(1.0, top_p=0.6))[0].count_nonzero() == 2
    assert distribution(logits, seen, Sampling(1.0, top_k=1))[0].tolist() == [1, 0, 0, 0]
    assert distribution(logits, seen, Sampling(1.0, min_p=0.2))[0].count_nonzero() == 3
    assert distribution(logits, seen, Sampling(0.0))[0].tolist() == [1, 0, 0, 0]
    assert distribution(logits, seen, Sampling(1.0, repetition=2.0))[0, 0] < 0.4


def test_completions_do_not_depend_on_their_neighbours(folder: Path) -> None:
    torch.manual_seed(0)
    model = PocketModel(TINY).eval()
    words = tokenizer.without_specials(folder / "tokenizer.json")
    prompts = ["def f", "def f3(x):\n    y", "x"]
    together = complete(model, words, prompts, [0, 1, 2], Sampling(1.0), 12, end=-1)
    alone = complete(model, words, prompts[1:2], [1], Sampling(1.0), 12, end=-1)
    assert together[1] == alone[0]
    assert len(alone[0].tokens) == 12


def test_an_exported_directory_is_read_by_transformers(folder: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = PocketModel(TINY).eval()
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    out = tmp_path / "hf"
    export.export(out, TINY, model.state_dict(), words, {"temperature": 0.5})
    ours = export.read(out)
    theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    tokens = torch.randint(0, 320, (1, 90))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
    chat = AutoTokenizer.from_pretrained(out)
    text = chat.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert theirs.generation_config.temperature == 0.5
