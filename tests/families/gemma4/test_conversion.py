"""Our conversion against files that llama.cpp's own converter wrote, and every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kinfolk.convert.driver import convert
from kinfolk.errors import ConversionError
from kinfolk.gguf.file import GGUFFile
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk.text.tokenizer import Tokenizer
from kinfolk_gemma4.family import Gemma4
from kinfolk_gemma4.text import CHAT

CASES = ("gemma4", "gemma4moe")
CONTROL, NORMAL, USER_DEFINED, UNUSED, BYTE = 3, 1, 4, 5, 6
# The name of the directory shows in these.
OF_THE_DIRECTORY = {"general.name", "general.basename"}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
    "inp_gate.weight": "per_layer_input_gate.weight",
    "proj.weight": "per_layer_projection.weight",
    "post_norm.weight": "post_per_layer_input_norm.weight",
}


def hugging_face_name(name: str) -> str:
    if name in TOP:
        return TOP[name]
    _, layer, local = name.split(".", 2)
    return f"model.layers.{layer}.{NAMES[local]}"


def config_of(file: GGUFFile, **changes: object) -> dict[str, object]:
    meta = file.metadata

    def integer(key: str) -> int:
        return meta.integer(meta.arch_key(key), default=0)

    windowed = meta.booleans("gemma4.attention.sliding_window_pattern").tolist()
    kv_heads = meta.per_layer("gemma4.attention.head_count_kv", len(windowed))
    experts = integer("expert_count")
    return {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "dtype": "float32",
        "vocab_size": 768,
        "vocab_size_per_layer_input": 768,
        "hidden_size": integer("embedding_length"),
        "intermediate_size": integer("feed_forward_length"),
        "num_hidden_layers": len(windowed),
        "num_attention_heads": integer("attention.head_count"),
        "num_key_value_heads": kv_heads[0],
        "num_global_key_value_heads": kv_heads[-1],
        "head_dim": integer("attention.key_length_swa"),
        "global_head_dim": integer("attention.key_length"),
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": integer("context_length"),
        "rms_norm_eps": 1e-6,
        "sliding_window": integer("attention.sliding_window"),
        "layer_types": ["sliding_attention" if w else "full_attention" for w in windowed],
        "hidden_size_per_layer_input": integer("embedding_length_per_layer_input"),
        "num_kv_shared_layers": integer("attention.shared_kv_layers"),
        "attention_k_eq_v": bool(experts),
        "enable_moe_block": bool(experts),
        "num_experts": experts or None,
        "top_k_experts": integer("expert_used_count") or None,
        "moe_intermediate_size": integer("expert_feed_forward_length") or None,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    } | changes


def write_tokenizer_of(file: GGUFFile, directory: Path) -> None:
    """The tokenizer files whose conversion gives the keys of the reference."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as HuggingFace

    meta = file.metadata
    tokens = list(meta.strings("tokenizer.ggml.tokens"))
    types = meta.integers("tokenizer.ggml.token_type").tolist()
    merges = [tuple(merge.split(" ", 1)) for merge in meta.strings("tokenizer.ggml.merges")]
    vocabulary = {text: index for index, text in enumerate(tokens)}
    made = HuggingFace(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    control = [text for text, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(text, special=True) for text in control])
    made.save(str(directory / "tokenizer.json"))
    settings = {
        "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture
def source(tmp_path, cases):
    """``source(case)``: the checkpoint that a reference file was made from, reconstructed."""

    def make(case: str, **changes: object) -> Path:
        directory = tmp_path / "hf"
        directory.mkdir()
        formats = QuantFormats()
        with GGUFFile.open(cases / f"{case}.gguf") as file:
            tensors = {
                hugging_face_name(name): QuantTensor.from_bytes(
                    file.inventory.bytes(name), formats.of_type(info.ggml_type), info.shape
                ).dequantize()
                for name, info in file.inventory.items()
                if name != "rope_freqs.weight"
            }
            (directory / "config.json").write_text(json.dumps(config_of(file, **changes)))
            write_tokenizer_of(file, directory)
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return directory

    return make


@pytest.fixture
def converted(tmp_path):
    def run(directory: Path, outtype: str = "bf16", **options: object) -> GGUFFile:
        path = tmp_path / f"{outtype}.gguf"
        options = {"overwrite": True, **options}
        return GGUFFile.open(
            convert(directory, path, outtype=outtype, families=[Gemma4()], **options).path
        )

    return run


def edit_json(path: Path, change) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def rename_tensors(directory: Path, change) -> None:
    path = directory / "model.safetensors"
    tensors = {change(name): tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def add_tensors(directory: Path, **added: torch.Tensor) -> None:
    path = directory / "model.safetensors"
    save_file(load_file(path) | added, path, metadata={"format": "pt"})


def assert_same_tensors(ours: GGUFFile, theirs: GGUFFile) -> None:
    assert set(ours.inventory) == set(theirs.inventory)
    for name, info in theirs.inventory.items():
        found = ours.inventory[name]
        assert (found.shape, found.type_name) == (info.shape, info.type_name), name
        assert np.array_equal(ours.inventory.bytes(name), theirs.inventory.bytes(name)), name


# -- the reference files --------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_way_back_leads_to_the_model_the_reference_was_made_from(source, cases, case):
    """Otherwise the comparison below would prove nothing."""
    from transformers import Gemma4ForCausalLM

    stored = np.load(cases / f"{case}.npz")
    model = Gemma4ForCausalLM.from_pretrained(source(case), dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(torch.from_numpy(stored["tokens"][None].astype(np.int64))).logits[0].numpy()
    assert np.abs(found - stored["logits"]).max() <= 1e-4 * np.abs(stored["logits"]).max()


@pytest.mark.parametrize("case", CASES)
def test_keys_types_and_values_are_those_of_the_reference(source, converted, cases, case):
    with GGUFFile.open(cases / f"{case}.gguf") as reference, converted(source(case)) as file:
        assert set(file.metadata) == set(reference.metadata)
        for key in set(reference.metadata) - OF_THE_DIRECTORY:
            ours, theirs = file.metadata.value(key), reference.metadata.value(key)
            assert ours.describe() == theirs.describe(), key
            if ours.is_array:
                assert list(ours.content) == list(theirs.content), key
            else:
                assert ours.content == theirs.content, key


@pytest.mark.parametrize("case", CASES)
def test_tensors_are_those_of_the_reference(source, converted, cases, case):
    with GGUFFile.open(cases / f"{case}.gguf") as reference, converted(source(case)) as file:
        assert_same_tensors(file, reference)


# -- forms of checkpoints -------------------------------------------------------------------------


def test_multimodal_checkpoints_hold_the_same_model(source, converted, cases):
    directory = source("gemma4")
    embedding = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    rename_tensors(directory, lambda name: name.replace("model.", "model.language_model.", 1))
    add_tensors(
        directory,
        **{
            "model.vision_tower.encoder.layers.0.mlp.gate_proj.linear.weight": torch.ones(4, 4),
            "model.embed_vision.embedding_projection.weight": torch.ones(4, 4),
            "model.audio_tower.layers.0.norm.weight": torch.ones(4),
            "model.embed_audio.embedding_projection.weight": torch.ones(4, 4),
            "model.vision_embedder.patch_dense.bias": torch.ones(4),
            "lm_head.weight": embedding,
        },
    )

    def wrap(config):
        text = dict(config)
        config.clear()
        config |= {"model_type": "gemma4", "text_config": text, "vision_config": {}}

    edit_json(directory / "config.json", wrap)
    with GGUFFile.open(cases / "gemma4.gguf") as reference, converted(directory) as file:
        assert_same_tensors(file, reference)


def test_unused_keys_of_layers_that_share_are_dropped(source, converted, cases):
    directory = source("gemma4")
    unused = {
        f"model.layers.{layer}.self_attn.{part}.weight": torch.ones(rows, 64)
        for layer, rows in ((4, 64), (5, 128))
        for part in ("k_proj", "v_proj")
    } | {"model.layers.5.self_attn.k_norm.weight": torch.ones(64)}
    add_tensors(directory, **unused)
    with GGUFFile.open(cases / "gemma4.gguf") as reference, converted(directory) as file:
        assert_same_tensors(file, reference)


def test_heads_of_full_layers_may_be_stated_layer_by_layer(source, converted, cases):
    directory = source("gemma4moe")

    def state(config):
        del config["global_head_dim"], config["num_global_key_value_heads"]
        each = {"head_dim": 64, "num_key_value_heads": 1}
        config["per_layer_config"] = {"2": each, "5": each}

    edit_json(directory / "config.json", state)
    with GGUFFile.open(cases / "gemma4moe.gguf") as reference, converted(directory) as file:
        assert_same_tensors(file, reference)


def test_wide_layers_are_written_one_by_one(source, converted):
    directory = source("gemma4", use_double_wide_mlp=True)
    tensors = load_file(directory / "model.safetensors")
    for layer in (4, 5):
        for part, axis in (("gate", 0), ("up", 0), ("down", 1)):
            name = f"model.layers.{layer}.mlp.{part}_proj.weight"
            tensors[name] = torch.cat([tensors[name]] * 2, axis)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with converted(directory) as file:
        widths = file.metadata.value("gemma4.feed_forward_length")
        assert widths.type == "i32"
        assert list(widths.content) == [160] * 4 + [320] * 2
        assert file.inventory["blk.5.ffn_down.weight"].shape == (64, 320)


def test_no_softcap_is_written_as_zero(source, converted):
    with converted(source("gemma4", final_logit_softcapping=None)) as file:
        assert file.metadata.number("gemma4.final_logit_softcapping") == 0


def test_an_output_matrix_of_its_own_is_written(source, converted):
    directory = source("gemma4", tie_word_embeddings=False)
    add_tensors(directory, **{"lm_head.weight": torch.full((768, 64), 0.5)})
    with converted(directory) as file:
        assert file.inventory["output.weight"].shape == (768, 64)


def test_rotation_factors_switch_most_pairs_off(source, converted):
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 2e5,
            "partial_rotary_factor": 0.5,
        },
    }
    with converted(source("gemma4", rope_parameters=rope)) as file:
        factors = file.inventory.bytes("rope_freqs.weight").view("<f4").reshape(-1)
        assert factors.tolist() == pytest.approx([1.0] * 16 + [1e30] * 16)
        assert file.metadata.number("gemma4.rope.freq_base") == 2e5
        assert file.metadata.number("gemma4.rope.freq_base_swa") == 5e3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0", "q4_0", "q4_k_m"])
def test_every_outtype_runs(source, converted, load, reference, case, outtype):
    """Rows here are no multiples of 256: fallback types are used, as in released files."""
    from kinfolk.testing.driver import Driver

    with converted(source(case), outtype) as file:
        types = {name: info.type_name for name, info in file.inventory.items()}
        assert types["blk.0.attn_norm.weight"] == "F32"
        if case == "gemma4moe":
            assert types["blk.0.ffn_gate_inp.weight"] == types["blk.0.ffn_gate_inp.scale"] == "F32"
        if case == "gemma4":
            quantised = outtype not in ("f32", "f16")
            kept = "BF16" if quantised else outtype.upper()
            assert types["per_layer_model_proj.weight"] == kept
            # Rows of 96 numbers, and of 160.
            stand_in = {"q4_k_m": "Q8_0", "q4_0": "Q8_0"}.get(outtype, outtype.upper())
            assert types["per_layer_token_embd.weight"] == stand_in
        drive = Driver(load(file.path))
    tokens, expected = reference(case)
    lease = drive.open()
    found = drive.feed({lease: tokens[:16]})[lease]
    error = (found - expected[:16]).norm() / expected[:16].norm()
    assert float(error) < {"f32": 1e-4, "f16": 2e-2}.get(outtype, 1.0)


# -- the tokenizer --------------------------------------------------------------------------------


def test_ids_are_those_of_the_tokenizers_library(source, converted):
    from tokenizers import Tokenizer as HuggingFace

    directory = source("gemma4")
    with converted(directory) as file:
        ours = Tokenizer.from_metadata(file.metadata, [Gemma4()], chat=CHAT)
    theirs = HuggingFace.from_file(str(directory / "tokenizer.json"))
    for text in ("def f(self):\n    return x\n\n\n", "é🙂 <bos>a<eos>", "  a  b ", ""):
        assert ours.encode(text, add_bos=False) == theirs.encode(text).ids, text


def test_special_tokens_are_control_unless_answers_show_them(source, converted):
    directory = source("gemma4")

    def mark(tokenizer):
        tokens = {index: text for text, index in tokenizer["model"]["vocab"].items()}
        specials = {4: "<|turn>", 700: "<|channel>", 701: '<|"|>', 702: "<mask>", 703: "<html>"}
        for index, text in specials.items():
            del tokenizer["model"]["vocab"][tokens[index]]
            tokenizer["model"]["merges"] = [
                pair for pair in tokenizer["model"]["merges"] if "".join(pair) != tokens[index]
            ]
            if index != 4:
                tokenizer["model"]["vocab"][text] = index
            special = text not in ("<mask>", "<html>")
            tokenizer["added_tokens"].append(
                {"id": index, "content": text, "special": special, "normalized": False}
            )
        gone = {tokens[index] for index in specials}
        tokenizer["model"]["merges"] = [
            pair for pair in tokenizer["model"]["merges"] if not gone & {*pair}
        ]

    edit_json(directory / "tokenizer.json", mark)
    edit_json(directory / "tokenizer_config.json", lambda s: s.update(mask_token="<mask>"))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    with converted(directory) as file:
        meta = file.metadata
        types = meta.integers("tokenizer.ggml.token_type").tolist()
        assert [types[i] for i in (4, 700, 701, 702, 703)] == [
            CONTROL, USER_DEFINED, USER_DEFINED, CONTROL, NORMAL,
        ]  # fmt: skip
        assert types[6:262] == [BYTE] * 256
        assert meta.integer("tokenizer.ggml.mask_token_id") == 702
        assert meta.string("tokenizer.chat_template") == "{{ messages }}"
        assert meta.boolean("tokenizer.ggml.add_bos_token")
        assert not meta.boolean("tokenizer.ggml.add_space_prefix")


def test_ids_without_a_token_are_padding(source, converted):
    directory = source("gemma4")

    def shorten(tokenizer):
        vocabulary = tokenizer["model"]["vocab"]
        last = next(text for text, index in vocabulary.items() if index == 767)
        del vocabulary[last]
        tokenizer["model"]["merges"] = [
            pair for pair in tokenizer["model"]["merges"] if "".join(pair) != last
        ]

    edit_json(directory / "tokenizer.json", shorten)
    with converted(directory) as file:
        assert file.metadata.strings("tokenizer.ggml.tokens")[767] == "[PAD767]"
        assert file.metadata.integers("tokenizer.ggml.token_type")[767] == UNUSED


def test_tokens_that_answers_must_not_contain_are_named(source, converted):
    directory = source("gemma4")
    path = directory / "generation_config.json"
    path.write_text(json.dumps({"suppress_tokens": [5, 700]}))
    with converted(directory) as file:
        assert file.metadata.integers("tokenizer.ggml.suppress_tokens").tolist() == [5, 700]
    path.write_text(json.dumps({"suppress_tokens": ["<x>"]}))
    with pytest.raises(ConversionError, match=r"generation_config.*'suppress_tokens'"):
        converted(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["model"].update(byte_fallback=False), "only BPE over characters"),
        (lambda t: t["model"].update(type="Unigram"), "is of type 'Unigram'"),
        (lambda t: t.update(normalizer=None), "normaliser None cannot be converted"),
        (lambda t: t.update(normalizer={"type": "NFC"}), "normaliser 'NFC'"),
        (lambda t: t.update(pre_tokenizer={"type": "Metaspace"}), "pre-tokenizer 'Metaspace'"),
        (
            lambda t: t.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": r"\d"}}),
            "pre-tokenizer 'Split'",
        ),
    ],
)
def test_tokenizers_of_other_kinds_are_refused(source, converted, change, message):
    directory = source("gemma4")
    edit_json(directory / "tokenizer.json", change)
    with pytest.raises(ConversionError, match=message) as caught:
        converted(directory)
    assert "tokenizer.json" in str(caught.value)


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_activation": "silu"}, "'hidden_activation' is 'silu'"),
        ({"attention_bias": True}, "'attention_bias' is True"),
        ({"use_bidirectional_attention": "all"}, "'use_bidirectional_attention' is 'all'"),
        ({"layer_types": ["full_attention"] * 5}, "'layer_types' has 5 entries"),
        ({"layer_types": ["linear_attention"] * 6}, "linear_attention"),
        ({"vocab_size_per_layer_input": 100}, "'vocab_size_per_layer_input' is 100"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "'rope_parameters.full_attention.rope_type' is 'yarn'",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "proportional"}}},
            "'rope_parameters.full_attention.rope_theta' is missing",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"partial_rotary_factor": 0.5}}},
            r"'rope_parameters.sliding_attention.partial_rotary_factor' is 0\.5",
        ),
        ({"rope_parameters": {"rope_theta": 1e4}}, "'rope_parameters.full.*rope_theta' is missing"),
        ({"use_bidirectional_attention": "some"}, "'use_bidirectional_attention' is 'some'"),
        (
            {
                "enable_moe_block": True,
                "num_experts": 2,
                "top_k_experts": 3,
                "moe_intermediate_size": 8,
            },
            "'top_k_experts' is 3, of 2 experts",
        ),
        (
            {"per_layer_config": {layer: {"head_dim": 64} for layer in "035"}},
            r"the key 'per_layer_config\.0' = \{'head_dim': 64\}",
        ),
        (
            {
                "per_layer_config": {
                    "3": {"head_dim": 64, "num_key_value_heads": 2},
                    "5": {"head_dim": 32, "num_key_value_heads": 2},
                }
            },
            "'per_layer_config' gives full-attention layers different heads",
        ),
        ({"sliding_window": None}, "'sliding_window' is missing"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_key_and_file(source, converted, changes, message):
    with pytest.raises(ConversionError, match=message) as caught:
        converted(source("gemma4", **changes))
    assert "config.json" in str(caught.value)


def test_a_checkpoint_of_another_family_is_not_ours(source, converted):
    with pytest.raises(ConversionError, match="no installed family converts"):
        converted(source("gemma4", model_type="gemma3_text"))
