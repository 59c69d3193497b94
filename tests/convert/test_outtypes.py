"""Every --outtype: the types its rules ask for, and numbers as near as the format allows."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from kinfolk.convert.driver import outtypes

# Root mean square error over that of the weights, at most: half a step of the coarsest type used.
ERROR = {
    "f32": 0, "f16": 3e-4, "bf16": 2.5e-3, "q8_0": 6e-3,
    "q4_0": 0.11, "q4_1": 0.09, "q5_0": 0.055, "q5_1": 0.045,
    "q2_k": 0.35, "q3_k_s": 0.2, "q3_k_m": 0.2, "q3_k_l": 0.2,
    "q4_k_s": 0.09, "q4_k_m": 0.09, "q5_k_s": 0.045, "q5_k_m": 0.045, "q6_k": 0.025,
    "iq4_nl": 0.09,
}  # fmt: skip


@pytest.fixture
def wide(checkpoint):
    """Widths that K-quants divide, except for the input of ``ssm_out`` [256, 192]."""
    return checkpoint(hidden_size=256, intermediate_size=512)


def test_the_errors_below_cover_all_outtypes():
    assert set(outtypes()) == set(ERROR)


@pytest.mark.parametrize("outtype", ERROR)
def test_a_file_of_each_type_loads_and_holds_the_weights(
    outtype, wide, converted, read_tensors, tmp_path
):
    exact = read_tensors(converted(wide, path=tmp_path / "exact.gguf").path)
    reader = GGUFReader(converted(wide, outtype).path)
    assert {tensor.name for tensor in reader.tensors} == set(exact)
    for tensor in reader.tensors:
        found = dequantize(tensor.data, tensor.tensor_type)
        expected = exact[tensor.name]
        assert found.shape == expected.shape
        rms = float(np.sqrt(np.mean((found - expected) ** 2)))
        allowed = 0 if tensor.tensor_type.name == "F32" else ERROR[outtype]
        assert rms <= allowed * float(np.sqrt(np.mean(expected**2))), tensor.name


def test_vectors_norms_and_short_convolutions_stay_float32(wide, converted):
    kinds = {t.name: t.tensor_type.name for t in GGUFReader(converted(wide, "q4_k_m").path).tensors}
    kept = {name for name, kind in kinds.items() if kind == "F32"}
    vectors = {
        "attn_norm.weight", "post_attention_norm.weight", "ssm_a", "ssm_conv1d.weight",
        "ssm_dt.bias", "ssm_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight",
    }  # fmt: skip
    assert kept == {"output_norm.weight"} | {
        name for name in kinds if name.split(".", 2)[-1] in vectors
    }


def test_the_types_of_a_q4_k_m_file(checkpoint, converted):
    """Eight layers, 3 and 7 with full attention: each rule applies to some layers only."""
    directory = checkpoint(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        linear_num_value_heads=8,
        full_attention_interval=4,
    )
    kinds = {
        t.name: t.tensor_type.name for t in GGUFReader(converted(directory, "q4_k_m").path).tensors
    }
    more = {0, 3, 6, 7}
    for layer in range(8):
        block = f"blk.{layer}."
        better = "Q6_K" if layer in more else "Q4_K"
        values = "attn_v" if layer in (3, 7) else "attn_qkv"
        assert kinds[f"{block}ffn_down.weight"] == better, layer
        assert kinds[f"{block}{values}.weight"] == better, layer
        assert kinds[f"{block}ffn_up.weight"] == "Q4_K"
        if layer not in (3, 7):
            assert kinds[f"{block}ssm_out.weight"] == "Q4_K"
            assert kinds[f"{block}ssm_alpha.weight"] == "Q8_0"
            assert kinds[f"{block}ssm_beta.weight"] == "Q8_0"
    assert kinds["token_embd.weight"] == "Q4_K"
    assert kinds["output.weight"] == "Q6_K"


def test_rows_that_blocks_do_not_divide_get_a_smaller_block(wide, converted):
    """The rows of ssm_out have 192 numbers."""
    for outtype, expected in (("q4_k_m", "Q5_0"), ("q6_k", "Q8_0"), ("q2_k", "Q4_0")):
        reader = GGUFReader(converted(wide, outtype, overwrite=True).path)
        kinds = {t.name: t.tensor_type.name for t in reader.tensors}
        assert kinds["blk.0.ssm_out.weight"] == expected


def test_the_output_matrix_is_the_embedding_where_they_are_tied(checkpoint, converted):
    directory = checkpoint(hidden_size=256, intermediate_size=512, tie_word_embeddings=True)
    reader = GGUFReader(converted(directory, "q4_k_m").path)
    kinds = {t.name: t.tensor_type.name for t in reader.tensors}
    assert kinds["token_embd.weight"] == "Q6_K"
    assert "output.weight" not in kinds


def test_pieces_and_threads_change_no_byte(wide, converted, tmp_path, monkeypatch):
    one = converted(wide, "q4_k_m", path=tmp_path / "one.gguf", workers=1).path.read_bytes()
    monkeypatch.setattr("kinfolk.convert.driver.PIECE_VALUES", 3000)
    many = converted(wide, "q4_k_m", path=tmp_path / "many.gguf", workers=4).path.read_bytes()
    assert one == many
