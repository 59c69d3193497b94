"""The assistant against that of transformers: the same target, tokens and hidden states."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from kinfolk.cli.main import cli
from kinfolk.engine.engine import Engine
from kinfolk.engine.preparing import prepare_model
from kinfolk.errors import ConversionError, KinfolkError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.values import Value
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.synth.tiny import tiny_model
from kinfolk.testing.draft_driver import DraftDriver
from kinfolk.testing.model_files import numbers_of, rewrite, write_f32
from kinfolk_gemma4.assistant.config import CENTROIDS, CLUSTERS, INPUTS, OUTPUTS
from kinfolk_gemma4.assistant.tiny import write
from kinfolk_gemma4.shapes import outline
from kinfolk_gemma4.tiny import SHAPE as TARGET
from kinfolk_gemma4.tiny import tiny

CASES = Path(__file__).parents[2] / "data" / "cases"
BOUND = 1e-4
ANSWER = 24
PASSES = 4
TOLD_APART = 100
"""A mistake changes the logits by at least so many times the bound."""
LENGTHS = (1, 5, TARGET.window, TARGET.window + 1, 140)
TOKEN = 17


class TrueFeatures(DraftDriver):
    """Gives the drafter the features of the model instead of made-up ones."""

    def _features(self, items, rows):
        return self.forward.features


class Side:
    """Our assistant behind texts; ``logits`` and ``listed`` are those of the last draft."""

    def __init__(self, loaded):
        self.drive = TrueFeatures(loaded)
        self.logits, self.listed = [], []
        head = self.drive.drafter.head

        def record(rows):
            logits, listed = head(rows)
            self.logits.append(logits[0])
            self.listed.append(None if listed is None else listed[0])
            return logits, listed

        self.drive.drafter.head = record

    def draft(self, tokens, padding=0):
        """Propose behind these tokens; returns the proposals and the hidden state behind them."""
        lease = self.drive.open()
        self.drive.feed({lease: tokens})
        self.logits.clear()
        self.listed.clear()
        proposals = self.drive.propose({lease: TOKEN}, padding=padding)
        return proposals, self.drive.drafter.hidden.rows(self.drive.state)[lease.slot].clone()


@pytest.fixture(scope="module")
def tokens():
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, TARGET.vocabulary, (max(LENGTHS),), generator=generator)


@pytest.fixture
def side(pair):
    return Side(pair.loaded())


class Theirs:
    """The assistant of transformers, and what it may be told wrong.

    A row of a windowed layer at position p sees those from p - window + 1 on, in the target and
    here. Their mask shows two more, so they get only these.
    """

    def __init__(self, pair, *, late=0, dropped=0, window=TARGET.window, advance=False):
        self.pair, self.late, self.dropped, self.window = pair, late, dropped, window
        self.advance = advance

    @torch.inference_mode()
    def draft(self, tokens, hidden):
        """Logits [passes, vocabulary] behind tokens [n] and the hidden state [width]."""
        n, shared = len(tokens), self.shared(tokens)
        table, token, hidden = self.pair.target.get_input_embeddings(), TOKEN, hidden[None, None]
        found = []
        for number in range(PASSES):
            position = n + self.late + (number if self.advance else 0)
            both = torch.cat([table(torch.tensor([[token]])), hidden], -1)
            out = self.pair.assistant(
                inputs_embeds=both,
                position_ids=torch.tensor([[position]]),
                shared_kv_states=shared,
            )
            found.append(out.logits[0, 0])
            hidden, token = out.last_hidden_state, int(found[-1].argmax())
        return torch.stack(found)

    def shared(self, tokens):
        """The keys and values of committed rows, by the kind of layer."""
        known = self.pair.target.model(
            tokens[None], use_cache=False, return_shared_kv_states=True
        ).shared_kv_states
        last = len(tokens) - self.dropped
        first = {"full_attention": 0, "sliding_attention": max(0, len(tokens) - self.window + 1)}
        return {
            kind: tuple(part[:, :, start:last] for part in known[kind])
            for kind, start in first.items()
        }


def error(side, expected):
    """The largest difference of a logit of a draft, relative to the largest of its pass."""
    worst = 0.0
    for logits, listed, row in zip(side.logits, side.listed, expected, strict=True):
        right = row if listed is None else row[listed]
        worst = max(worst, float((logits - right).abs().max() / right.abs().max()))
    return worst


@pytest.mark.parametrize("length", LENGTHS)
def test_every_pass_computes_what_transformers_does(pair, side, tokens, length):
    text = tokens[:length]
    proposals, hidden = side.draft(text.tolist())
    expected = Theirs(pair).draft(text, hidden)
    assert error(side, expected) <= BOUND
    assert torch.equal(proposals.tokens[0, :, 0], expected.argmax(-1))
    assert proposals.tokens.shape == (1, PASSES, 8)
    assert torch.equal(proposals.tokens[0], expected.topk(8, -1).indices)


def test_the_hidden_state_is_the_normed_one_of_the_last_committed_row(pair, side, tokens):
    _, hidden = side.draft(tokens.tolist())
    with torch.inference_mode():
        theirs = pair.target.model(tokens[None]).last_hidden_state[0, -1]
    # Features are rounded to bfloat16.
    assert float((hidden - theirs).abs().max() / theirs.abs().max()) < 2**-8 + 2 * BOUND


def test_scores_are_log_probabilities_of_the_tokens_that_are_compared(pair, side, tokens):
    proposals, _ = side.draft(tokens[:30].tolist())
    for depth, logits in enumerate(side.logits):
        right = logits.log_softmax(-1).topk(8).values
        torch.testing.assert_close(proposals.scores[0, depth], right, rtol=0, atol=BOUND)


@pytest.mark.parametrize(
    "mistake",
    [
        {"late": -1},
        {"late": 1},
        {"dropped": 1},
        {"window": TARGET.window - 1},
        {"window": TARGET.window + 1},
        {"advance": True},
    ],
    ids=str,
)
def test_other_positions_and_rows_are_seen(pair, side, tokens, mistake):
    _, hidden = side.draft(tokens.tolist())
    expected = Theirs(pair, **mistake).draft(tokens, hidden)
    assert error(side, expected) >= TOLD_APART * BOUND


KERNELS = ("qk_rope_write", "gated_attention", "rms_norm", "add_rms_norm", "act_and_mul")


@pytest.mark.interpreter
@pytest.mark.parametrize("pair", ["clustered"], indirect=True)
def test_kernels_give_what_transformers_gives(pair, tokens):
    """On the kernels of the GPU, interpreted, beside padding."""
    side = Side(pair.loaded(op=dict.fromkeys(KERNELS, "triton"), draft_tokens=2))
    text = tokens[:4]
    _, hidden = side.draft(text.tolist(), padding=2)
    expected = Theirs(pair).draft(text, hidden)[:2]
    assert error(side, expected) <= BOUND
    assert all((op, "triton") in side.drive.loaded.ops.decisions for op in KERNELS)


# -- in the engine --------------------------------------------------------------------------------


def answer(loaded, prompts):
    """Greedy answers of requests that run side by side, and how many drafts were accepted."""
    limits = SchedulerLimits(
        slots=4, context=512, step_tokens=128, slice=32, vocabulary=loaded.info.vocabulary
    )
    with Engine(loaded, limits) as engine:
        tickets = [
            engine.submit(Request(str(index), tuple(prompt), ANSWER))
            for index, prompt in enumerate(prompts)
        ]
        events = [list(ticket) for ticket in tickets]
        assert engine.stats()["draft_failures"] == 0
    tokens = [[token for each in said[:-1] for token in each.tokens] for said in events]
    return tokens, sum(said[-1].usage.accepted for said in events)


@pytest.mark.parametrize(
    "shape", [{}, {"draft_mode": "tree", "draft_budget": 9}], ids=["chain", "tree"]
)
def test_text_is_that_without_the_assistant(pair, tokens, shape):
    """Random weights are seldom right, so the first tokens of most drafts are put right."""
    prompts = [tokens[:20].tolist(), tokens[30:130].tolist()]
    expected, _ = answer(pair.loaded(draft_model=None, draft_tokens=None), prompts)
    whole = {len(p): [*p, *said] for p, said in zip(prompts, expected, strict=True)}
    loaded = pair.loaded(**shape)
    drafter = loaded.drafter.drafter
    draft = drafter.draft

    def mostly_right(block, view):
        found = draft(block, view)
        for lane, (position, token) in enumerate(
            zip(block.positions.tolist(), block.tokens.tolist(), strict=True)
        ):
            for text in whole.values():
                if text[position : position + 1] == [token]:
                    right = text[position + 1 : position + 1 + position % PASSES]
                    found.tokens[lane, : len(right), 0] = torch.tensor(right)
        return found

    drafter.draft = mostly_right
    found, accepted = answer(loaded, prompts)
    assert found == expected
    assert accepted > ANSWER // 2


# -- refusals -------------------------------------------------------------------------------------


@pytest.fixture
def refusal(registry, with_tokens, tmp_path):
    """``refusal(added=, keys=, without=, path=)``: what is said of the kit's assistant with
    changes, beside the tiny model."""

    def say(path=with_tokens, keys=None, **changes):
        plain, changed = tmp_path / "plain.gguf", tmp_path / "draft.gguf"
        write(with_tokens, plain)
        with GGUFFile.open(plain) as file:
            values = {f"gemma4-assistant.{key}": value for key, value in (keys or {}).items()}
            rewrite(file, changed, keys=values, **changes)
        settings = load_settings(device="cpu", dtype="f32", context=512, draft_model=changed)
        with pytest.raises(KinfolkError) as caught:
            prepare_model(path, settings, registry)
        assert "draft.gguf" in str(caught.value)
        return str(caught.value)

    return say


def test_an_assistant_of_another_target_is_refused_with_the_numbers(refusal, with_tokens):
    wide = {INPUTS: np.zeros((32, 96), np.float32)}
    said = refusal(added=wide, keys={"embedding_length_out": Value("u32", 48)})
    assert f"{INPUTS!r} takes 2·48 numbers" in said
    assert f"the rows of the model {with_tokens} have 64" in said
    said = refusal(added=wide)
    assert "takes 96 numbers, expected twice the 64 of key" in said
    assert "'gemma4-assistant.embedding_length_out'" in said


@pytest.mark.parametrize(
    ("key", "number", "said"),
    [
        ("attention.key_length_swa", 32, "is 32 in layer 0, which reads the keys and values of "),
        ("attention.key_length", 64, "is 64 in layer 2, which reads the keys and values of "),
        ("attention.sliding_window", 70, "is 70 in layer 0, which reads the keys and values of "),
        ("attention.head_count_kv", 4, "is 4 in layer 0, which reads the keys and values of "),
        ("expert_count", 4, "is 4; assistants have 0"),
        ("centroid_top_k", 21, "is 21, expected"),
    ],
)
def test_keys_that_do_not_fit_the_target_are_named(refusal, key, number, said):
    changes = {key: Value("u32", number)}
    if key.startswith("attention.key_length"):
        changes[key.replace("key", "value")] = Value("u32", number)
    assert f"{'gemma4-assistant.' + key!r} {said}" in refusal(keys=changes)


def test_a_target_without_the_layers_is_refused(refusal, tmp_path):
    shape = replace(TARGET, windowed=(False,) * 5, unused_keys=False)
    outlined = tiny_model("gemma4", outline(shape, 5), tiny().shape.vocabulary)
    path = write_f32(outlined.shape, tmp_path / "full.gguf")
    said = refusal(path=path)
    assert "layer 0 reads the keys and values of the last windowed layer of the model" in said
    assert f"{path}, which has 5 layers and none of that kind" in said


def test_a_target_of_another_family_is_refused(refusal):
    said = refusal(path=CASES / "laguna.gguf")
    assert "drafts for models of family 'gemma4'" in said
    assert "is one of 'laguna'" in said


def test_a_file_without_one_half_of_the_clusters_is_refused(refusal):
    assert f"{CLUSTERS!r} is missing" in refusal(without=(CLUSTERS,))
    assert f"{CENTROIDS!r} is missing" in refusal(without=(CENTROIDS,))


# -- files ----------------------------------------------------------------------------------------


def test_files_of_earlier_converters_are_read(registry, with_tokens, tmp_path):
    """Tensors had other names, the architecture an underscore, and the width another key."""
    plain, early = tmp_path / "plain.gguf", tmp_path / "early.gguf"
    write(with_tokens, plain)
    names = {
        INPUTS: "mtp.pre_projection.weight",
        OUTPUTS: "mtp.post_projection.weight",
        CENTROIDS: "mtp.centroids.weight",
    }
    with GGUFFile.open(plain) as file:
        added = {early_name: numbers_of(file, name) for name, early_name in names.items()}
        keys = {
            key.replace("gemma4-assistant", "gemma4_assistant"): file.metadata.value(key)
            for key in file.metadata
        }
        keys["general.architecture"] = Value("string", "gemma4_assistant")
        without = (*names, "gemma4_assistant.embedding_length_out")
        rewrite(file, early, added=added, keys=keys, without=without)
    settings = load_settings(device="cpu", dtype="f32", context=512, draft_model=early)
    ready = prepare_model(with_tokens, settings, registry)
    assert ready.drafters.with_weights.plan.width == TARGET.hidden
    assert {spec.tensor for spec in ready.drafters.with_weights.plan.weights} >= set(names.values())


def test_what_cannot_be_converted_is_refused_by_key(pair, convert_assistant, tmp_path):
    shutil.copytree(pair.directory, tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    stated = json.loads(path.read_text())
    for change, said in (
        ({"tie_word_embeddings": False}, "'tie_word_embeddings'"),
        ({"use_ordered_embeddings": True, "num_centroids": 7}, "which does not divide the 600"),
        (
            {"use_ordered_embeddings": True, "num_centroids": 2, "centroid_intermediate_top_k": 3},
            "is 3, of 2 clusters in 'num_centroids'",
        ),
        ({"block_size": 4}, "'block_size'"),
    ):
        path.write_text(json.dumps(stated | change))
        with pytest.raises(ConversionError) as caught:
            convert_assistant(tmp_path / "hf", tmp_path / "draft.gguf")
        assert said in str(caught.value)


def test_the_command_line_converts_shows_and_plans_an_assistant(pair, with_tokens, tmp_path):
    def kinfolk(*arguments):
        result = CliRunner().invoke(cli, [str(each) for each in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    out = tmp_path / "model-draft.gguf"
    kinfolk("convert", pair.directory, out, "--target", with_tokens, "--outtype", "q8_0")
    shown = kinfolk("inspect", out)
    assert "'gemma4-assistant': it speeds up another model" in shown
    assert f"{INPUTS}" in shown
    planned = kinfolk("plan", with_tokens, "--draft-model", out, "--device", "cpu")
    bare = kinfolk("plan", with_tokens, "--device", "cpu")
    assert "drafter " in planned
    assert "drafter " not in bare
    asked = (
        "run",
        "-m",
        with_tokens,
        "--raw",
        "-n",
        8,
        "--temperature",
        0,
        "--device",
        "cpu",
        "ab",
    )
    assert kinfolk(*asked, "--draft-model", out) == kinfolk(*asked)
