"""Released sizes, their model cards, their vocabulary, and their chat format."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from kinfolk.descriptors import ReleasedShape
from kinfolk.engine.cards import find_card
from kinfolk.engine.reasoning import ReasoningSplitter
from kinfolk.gguf.metadata import Metadata
from kinfolk.quant.tensor import QuantTensor
from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk.synth.write import write_synthetic
from kinfolk.testing.driver import Driver
from kinfolk.text.chat import ChatTemplate
from kinfolk.text.tokenizer import Tokenizer
from kinfolk_gemma4.config import read_config
from kinfolk_gemma4.family import Gemma4
from kinfolk_gemma4.layout import AttentionShape, Gemma4Shape
from kinfolk_gemma4.shapes import PUBLISHED, SYNTHETIC_VOCABULARY, outline, windowed_layers
from kinfolk_gemma4.text import CHAT

GIB = 2**30
NAMES = ("gemma-4-26b-a4b", "gemma-4-31b", "gemma-4-e2b", "gemma-4-e4b", "gemma-4-12b")
FIXED = {"mixes": {PUBLISHED.name: PUBLISHED}, "architecture": "gemma4"}


def plan_of(name, **options):
    return plan_synthetic(find_shape(name, [Gemma4()]), **options)


# -- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("gemma-4-26b-a4b", 658, 25.2e9),
        ("gemma-4-31b", 833, 30.70e9),
        ("gemma-4-e2b", 601, None),
        ("gemma-4-e4b", 720, 7.52e9),
        ("gemma-4-12b", 48 * 13 + 40 + 3, None),
    ],
)
def test_tensors_and_parameters_are_those_of_published_files(name, tensors, parameters):
    plan = plan_of(name)
    assert len(plan.tensors) == tensors
    if parameters:
        assert plan.parameters == pytest.approx(parameters, rel=0.002)


def test_the_26b_file_in_circulation_is_known_to_the_tensor():
    plan = plan_of("gemma-4-26b-a4b")
    assert plan.types == {"F32": 392, "Q4_K": 192, "Q5_0": 32, "Q8_0": 28, "Q6_K": 14}
    assert plan.nbytes / GIB == pytest.approx(15.63, abs=0.005)
    kinds = {tensor.layout.name: tensor.kind for tensor in plan.tensors}
    assert kinds["token_embd.weight"] == "Q6_K"
    assert {kinds[f"blk.{n}.ffn_down_exps.weight"] for n in range(30)} == {"Q5_0", "Q8_0"}
    assert {kinds[f"blk.{n}.ffn_down.weight"] for n in range(30)} == {"Q5_0", "Q8_0"}
    assert {kinds[f"blk.{n}.ffn_gate_up_exps.weight"] for n in range(30)} == {"Q4_K"}


@pytest.mark.parametrize("name", NAMES)
def test_no_row_is_cut_inside_a_block(name):
    """Rows of 704 and 2112 numbers are no multiples of 256."""
    blocks = {"F32": 1, "BF16": 1, "Q4_K": 256, "Q6_K": 256, "Q5_0": 32, "Q8_0": 32}
    for tensor in plan_of(name).tensors:
        assert tensor.layout.shape[-1] % blocks[tensor.kind] == 0, tensor.layout.name


def test_embeddings_have_the_type_of_the_output_matrix_they_are():
    kinds = {tensor.layout.name: tensor.kind for tensor in plan_of("gemma-4-e2b").tensors}
    assert kinds["token_embd.weight"] == kinds["per_layer_token_embd.weight"] == "Q6_K"
    assert kinds["per_layer_model_proj.weight"] == "BF16"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5, 8, 13])
def test_short_models_keep_a_layer_of_each_kind(name, layers):
    config = read_config(Metadata.from_dict(plan_of(name, layers=layers).metadata))
    assert config.layers == layers
    assert not config.windowed[-1]
    if layers > 1:
        own = {config.windowed[n] for n in range(layers) if config.owner[n] == n}
        assert own == {True, False}
    sharing = name in ("gemma-4-e2b", "gemma-4-e4b")
    assert (config.owner != tuple(range(layers))) == (sharing and layers > 2)


@pytest.fixture(scope="module")
def small():
    """A small shape with every feature of the released sizes."""
    return Gemma4Shape(
        vocabulary=1024,
        hidden=256,
        context=4096,
        heads=4,
        full=AttentionShape(1, 128, 1e6),
        local=AttentionShape(2, 64, 1e4),
        window=40,
        windowed=windowed_layers(12, 3),
        feed_forward=96,
        shared=4,
        double_wide=True,
        keys_as_values=True,
        input_width=64,
        experts=8,
        top_k=2,
        expert_width=96,
        unused_keys=True,
    )


@pytest.fixture(scope="module")
def file(small, tmp_path_factory):
    """A synthetic file of the shape, in the types of published ones."""
    vocabulary = replace(SYNTHETIC_VOCABULARY, size=1024)
    shape = ReleasedShape(
        name="small", layers=12, outline=partial(outline, small), vocabulary=vocabulary, **FIXED
    )
    plan = plan_synthetic(shape)
    assert set(plan.types) == {"F32", "BF16", "Q4_K", "Q6_K", "Q5_0", "Q8_0"}
    path = tmp_path_factory.mktemp("synthetic") / "model.gguf"
    write_synthetic(plan, path)
    return path


def logits(loaded):
    drive = Driver(loaded)
    lease = drive.open()
    return drive.feed({lease: list(range(200, 360))}, rows=64)[lease]


def test_synthetic_files_run_and_stay_calm_over_many_layers(file, load):
    loaded = load(file)
    factors = loaded.file.inventory.bytes("rope_freqs.weight").view("<f4").reshape(-1)
    assert factors.tolist() == pytest.approx([1.0] * 16 + [1e30] * 48)
    found = logits(loaded)
    assert 0.3 < float(found.std()) < 3
    assert float(found.std(1).min()) > 0.1


def test_weights_may_stay_in_their_blocks(file, load, row_error):
    dense = logits(load(file))
    packed = load(file, weights="blocks")
    assert isinstance(packed.model.embedding, QuantTensor)
    assert isinstance(packed.model.layer_inputs.table, QuantTensor)
    assert row_error(logits(packed), dense) <= 1e-4


# -- vocabulary -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def synthetic():
    return Metadata.from_dict(plan_of("gemma-4-e2b", layers=1).metadata)


@pytest.fixture(scope="module")
def tokenizer(synthetic):
    return Tokenizer.from_metadata(synthetic, [Gemma4()], own="gemma4", chat=CHAT)


def test_the_vocabulary_is_whole(synthetic):
    tokens = list(synthetic.strings("tokenizer.ggml.tokens"))
    types = synthetic.integers("tokenizer.ggml.token_type").tolist()
    assert len(tokens) == len(set(tokens)) == len(types) == 262144
    assert len(synthetic.numbers("tokenizer.ggml.scores")) == 262144
    places = {1: "<eos>", 2: "<bos>", 50: "<|tool_response>", 106: "<turn|>", 107: "\n"}
    assert {index: tokens[index] for index in places} == places
    assert synthetic.integer("tokenizer.ggml.bos_token_id") == 2
    assert types.count(6) == 256


def test_synthetic_tokenizers_give_every_text_back(tokenizer):
    for text in ("Hello, world!\n\n\n  x = 1", "né🙂\r\n", "<|turn>user\nhi<turn|>\n"):
        assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text
    assert tokenizer.encode("hello there")[0] == 2


# -- chat format ----------------------------------------------------------------------------------


def test_a_chat_begins_once_and_ends_where_a_turn_does(synthetic, tokenizer):
    template = ChatTemplate.from_metadata(synthetic, tokenizer, CHAT)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    prompt = template.prompt([*messages, {"role": "user", "content": "on"}])
    assert prompt.text == (
        "<bos><|turn>user\nhi<turn|>\n<|turn>model\nyo<turn|>\n<|turn>user\non<turn|>\n"
        "<|turn>model\n"
    )
    assert prompt.tokens.count(2) == 1
    assert {tokenizer.token_text(token) for token in tokenizer.eog} == {
        "<eos>", "<turn|>", "<|tool_response>",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<|channel>thought\nR\n<channel|>C", "R", "C"),
        ("<|channel>thought\n<channel|>C", "", "C"),
        ("C", "", "C"),
        ("<|channel>thought\nR", "R", ""),
    ],
)
def test_reasoning_is_told_from_the_answer(text, reasoning, content):
    splitter = ReasoningSplitter(*CHAT.think, started=False)
    parts = [part for letter in text for part in splitter.feed(letter)] + splitter.finish()
    assert "".join(part.text for part in parts if part.kind == "reasoning") == reasoning
    assert "".join(part.text for part in parts if part.kind == "content") == content


@pytest.mark.parametrize("name", ["Gemma 4 26B A4B It", "gemma-4-31B-it", "Gemma 4 E2B it"])
def test_released_models_have_a_card(name, tmp_path):
    meta = Metadata.from_dict({"general.name": name})
    card = find_card(tmp_path / "model.gguf", meta, Gemma4())
    assert (card.sampling.temperature, card.sampling.top_k, card.sampling.top_p) == (1.0, 64, 0.95)
    assert card.max_tokens == 16384
    assert card.thinking_budget == 12288
