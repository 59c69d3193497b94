"""The block that is trained: the runtime's function, the file it is written to, whole runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from mtp_bench import Bench, open_model, relative, write_model
from training_runs import Notes, generated

from kinfolk.engine.loading import load_model
from kinfolk.errors import SettingsError, UnsupportedModelError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.metadata import Metadata
from kinfolk.sched.request import Sampling
from kinfolk.settings import load_settings
from kinfolk.train.checkpoint import checkpoint_path
from kinfolk.train.kinds import Writing
from kinfolk.train.mtp.drafter import TrainedMTP
from kinfolk.train.mtp.keys import with_block
from kinfolk.train.options import TrainOptions
from kinfolk.train.prepared import prepare_run
from kinfolk.train.run import TrainingRun
from kinfolk.train.target import FrozenTarget
from kinfolk.train.texts import Text

BOUND = 1e-4
CASES = ["qwen35", "qwen35moe"]
SMALL = {
    "kind": "mtp", "steps": 6, "length": 40, "batch": 2, "anchors": 8, "learning_rate": 3e-3,
    "outtype": "f32",
}  # fmt: skip
ANCHORS = (1, 7, 29)
"""Of which the last has as many tokens before it as the text."""


@pytest.fixture
def prepare(cases, registry, tmp_path):
    """``prepare(case or path, **options)``: a run on six short texts."""
    data = tmp_path / "texts.jsonl"
    words = ["def one", "class Two", "import three", "for four", "while five", "return six"]
    data.write_text("".join(json.dumps({"text": word * 9}) + "\n" for word in words))

    def make(target="qwen35", **options):
        path = cases / f"{target}.gguf" if isinstance(target, str) else target
        settings = load_settings(device="cpu", dtype="f32")
        return prepare_run(path, [data], TrainOptions(**{**SMALL, **options}), settings, registry)

    return make


@pytest.fixture
def block(prepare, load_case):
    """``block(case, **options)``: an untrained block with norms that are not trivial."""

    def make(case="qwen35", **options):
        chosen = TrainOptions(**{**SMALL, **options})
        target = FrozenTarget(load_case(case), (), final=True, kept_bytes=1 << 20)
        drafter = prepare(case, **options).plan.build(target, chosen)
        generator = torch.Generator().manual_seed(3)
        for name, tensor in drafter.parameters.items():
            if name.endswith("norm.weight"):
                tensor.data *= 1 + 0.2 * torch.randn(tensor.shape, generator=generator)
            elif name.endswith(("attn_q.weight", "ffn_gate_inp.weight")):
                tensor.data *= 3  # so that a few keys and experts decide
        return drafter

    return make


def write(drafter: TrainedMTP, path, registry, outtype="f32", name="", *, alone=False):
    calls = []
    progress = lambda *done: calls.append(done)  # noqa: E731
    writing = Writing(path, outtype, name, False, alone, registry, progress)
    nbytes = drafter.write(drafter.parameters, writing)
    assert nbytes == path.stat().st_size
    assert calls[-1][0] == calls[-1][1] > 0
    return path


# -- the same function ----------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_every_pass_is_that_of_the_runtime(case, block, registry, tmp_path):
    """The runtime's block, from the file that was written, drafts behind a text's features; the
    trained one computes the same rows of all anchors at once, from the tokens it drafted."""
    drafter = block(case, block=5)
    path = write(drafter, tmp_path / "with.gguf", registry)
    bench = Bench(open_model(path, registry, draft_tokens=4))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 700, (30,), generator=generator)
    hidden = drafter.target.features(Text(tuple(tokens.tolist())))
    read, expected = [], []
    for anchor in ANCHORS:
        lease = bench.open(100)
        bench.extend({lease: (tokens[:anchor].tolist(), hidden[:anchor])})
        drafted = bench.draft({lease: int(tokens[anchor])}).tokens[0, :, 0]
        read.append(torch.cat([tokens[anchor : anchor + 1], drafted[:-1]]))
        expected.append(bench.rows())
    embed = drafter.target.embed
    found = drafter._network(hidden, embed(tokens), embed(torch.stack(read)), torch.tensor(ANCHORS))
    for mine, theirs in zip(found, expected, strict=True):
        assert relative(mine, theirs) <= BOUND


@pytest.mark.parametrize("case", CASES)
def test_every_weight_learns(case, block):
    drafter = block(case)
    text = Text(tuple(range(5, 40)))
    blocks = drafter.sample(text, torch.Generator().manual_seed(0))
    drafter.loss(text, blocks).backward()
    still = [name for name, t in drafter.parameters.items() if t.grad is None or not t.grad.any()]
    assert not still


def test_the_loss_is_that_of_the_passes_with_falling_weights(block):
    """Summed pass by pass and anchor by anchor, with the weights exp(-(k - 1) / gamma)."""
    drafter = block(block=4, gamma=1.5, anchors=5)
    text = Text(tuple(range(5, 25)), first=10)
    blocks = drafter.sample(text, torch.Generator().manual_seed(2))
    tokens, embed = torch.tensor(text.tokens), drafter.target.embed
    hidden, total = drafter.target.features(text), 0.0
    for anchor in blocks.anchors.tolist():
        for k in (1, 2, 3):
            if anchor + k < len(tokens):
                read = embed(tokens[anchor : anchor + k])[None]
                rows = drafter._network(hidden, embed(tokens), read, torch.tensor([anchor]))
                chances = drafter.target.logits(rows[0, -1:]).log_softmax(-1)
                total -= chances[0, tokens[anchor + k]].item() * np.exp(-(k - 1) / 1.5)
    assert drafter.loss(text, blocks).item() == pytest.approx(total, rel=1e-5)


# -- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_the_model_stays_byte_for_byte(case, outtype, block, registry, tmp_path, cases):
    path = write(block(case), tmp_path / "with.gguf", registry, outtype)
    with GGUFFile.open(cases / f"{case}.gguf") as before, GGUFFile.open(path) as after:
        names = list(before.inventory)
        assert list(after.inventory)[: len(names)] == names
        for name in names:
            assert after.inventory[name].type_name == before.inventory[name].type_name
            assert np.array_equal(after.inventory.bytes(name), before.inventory.bytes(name))
        added = {n: info.type_name for n, info in after.inventory.items() if n not in names}
        assert all(name.startswith("blk.5.") for name in added)
        assert added["blk.5.nextn.eh_proj.weight"] == outtype.upper()
        assert added["blk.5.nextn.enorm.weight"] == "F32"
        changed = {key for key in after.metadata if key not in before.metadata}
        assert changed == {f"{case}.nextn_predict_layers"}
        assert after.metadata.integer(f"{case}.block_count") == 6
    loaded = open_model(path, registry)
    assert loaded.drafter is not None
    assert loaded.config.layers == 5
    apart = write(block(case), tmp_path / "alone.gguf", registry, outtype, alone=True)
    with GGUFFile.open(path) as both, GGUFFile.open(apart) as alone:
        assert list(alone.metadata) == list(both.metadata)
        assert set(alone.inventory) == set(added)
        for name in added:
            assert np.array_equal(alone.inventory.bytes(name), both.inventory.bytes(name))


def test_keys_for_each_layer_get_the_entry_of_a_layer_with_attention(cases, registry):
    with GGUFFile.open(cases / "qwen35moe.gguf") as file:
        keys = {key: file.metadata.value(key) for key in file.metadata}
    arrays = {
        "attention.head_count_kv": [0, 0, 0, 2, 0],
        "attention.recurrent_layers": [True, True, True, False, True],
        "expert_feed_forward_length": [32, 32, 32, 48, 32],
    }
    keys |= {f"qwen35moe.{name}": np.array(array) for name, array in arrays.items()}
    keys |= {"split.count": 1, "general.alignment": 64}
    found = with_block(Metadata.from_dict(keys), 5, 3)
    ends = [found[f"qwen35moe.{name}"].content.tolist()[5:] for name in arrays]
    assert ends == [[2], [False], [48]]
    assert not {"split.count", "general.alignment"} & set(found)
    config = registry.family_for("qwen35moe").read_config(Metadata.from_dict(found))
    assert (config.layers, config.draft_layers) == (5, 1)


# -- whole runs -----------------------------------------------------------------------------------


@pytest.fixture
def run(prepare, registry):
    def make(out, stop=lambda: False, **options):
        chosen = TrainOptions(**{**SMALL, **options})
        settings = load_settings(device="cpu", dtype="f32")
        prepared = prepare(**options)
        return TrainingRun(prepared, chosen, settings, registry, out, Notes(), stop)

    return make


def test_an_interrupted_run_writes_the_same_file(run, tmp_path):
    whole, parts = tmp_path / "whole.gguf", tmp_path / "parts.gguf"
    job = run(whole)
    trained = job.run()
    assert len(trained.measured.hits) == 3
    assert any("expected length" in line for line in job.report.lines)
    assert "written" in {what for *_, what in job.report.calls}
    calls = []
    stopped = run(parts, stop=lambda: calls.append(1) or len(calls) > 10)
    assert stopped.run() is None
    assert checkpoint_path(parts).exists()
    assert not parts.exists()
    assert run(parts).run() is not None
    assert parts.read_bytes() == whole.read_bytes()


def test_what_was_learned_is_kept_by_the_engine(run, tmp_path, registry):
    """Most drafts for a text that was learned are kept, which a confusion of positions or passes
    would prevent."""
    out = tmp_path / "with.gguf"
    job = run(out, continue_=30, steps=40, batch=4)
    texts = []
    train = job._training
    job._training = lambda drafter, known, *rest: (
        texts.extend(known) or train(drafter, known, *rest)
    )
    job.run()
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 2, "draft": "mtp"}
    loaded = load_model(out, load_settings(**options), registry)
    text = texts[0]
    tokens, usage = generated(loaded, text.tokens[: text.first], Sampling(), 30)
    assert tokens == list(text.tokens[text.first :])
    assert usage.steps < 15


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "options", "error", "message"),
    [
        ("qwen35", {"layers": 2}, SettingsError, r"--kind mtp takes no --layers: the block has"),
        ("qwen35", {"feature_layers": (1,)}, SettingsError, "takes no --feature-layers"),
        ("gemma4", {}, UnsupportedModelError, r"gemma4\.gguf: family 'gemma4' has no block"),
    ],
)
def test_what_cannot_be_trained_is_named(target, options, error, message, prepare):
    with pytest.raises(error, match=message):
        prepare(target, **options)


def test_a_file_with_a_block_is_refused(prepare, tmp_path):
    write_model(tmp_path / "with.gguf")
    with pytest.raises(UnsupportedModelError, match=r"with\.gguf.*nextn_predict_layers"):
        prepare(tmp_path / "with.gguf")
