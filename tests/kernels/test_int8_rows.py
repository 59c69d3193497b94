"""Activations as int8: the error of rounding, and rows that stay apart."""

from __future__ import annotations

import pytest
import torch
from int8_sums import assert_sums_are_those_of_the_rows

from kinfolk_kernels import row_forms
from kinfolk_kernels.int8_rows import dequantize, quantize, sums_of
from kinfolk_kernels.row_forms import worth_int8, worth_mma


@pytest.mark.parametrize(("count", "columns"), [(1, 64), (2, 704), (16, 5120), (32, 64), (33, 64)])
def test_few_rows_have_sums_of_half_groups(count, columns):
    x = torch.randn(count, columns, generator=torch.Generator().manual_seed(columns))
    assert_sums_are_those_of_the_rows(quantize(x))
    if count in (1, 33):
        with pytest.raises(ValueError, match=f"{count} rows have no sums"):
            sums_of(quantize(x))


@pytest.mark.parametrize("columns", [64, 704, 5120])
def test_every_number_is_within_half_a_step(columns):
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns)) * 30
    rows = quantize(x)
    steps = rows.scales.repeat_interleave(64, 1)
    assert ((dequantize(rows) - x).abs() <= steps * 0.5001).all()


def test_zeros_stay_zeros_and_rows_do_not_mix():
    x = torch.randn(2, 128, generator=torch.Generator().manual_seed(1))
    x[0, 64:] = 0
    both, alone = quantize(x), quantize(x[1:])
    assert (dequantize(both)[0, 64:] == 0).all()
    assert torch.equal(both.words[1:], alone.words)


def test_words_that_meet_those_of_a_lane_stand_together():
    rows = quantize(torch.arange(-64.0, 64).repeat(3, 1))
    words = dequantize(rows)[2].div(rows.scales[2].repeat_interleave(64)).round().to(torch.int8)
    words = words.view(torch.int32).view(2, 16)
    assert rows.words[2, :8].tolist() == words[0, [0, 4, 8, 12, 1, 5, 9, 13]].tolist()
    assert rows.words[2, 16:20].tolist() == words[1, [0, 4, 8, 12]].tolist()


@pytest.mark.parametrize(
    ("count", "columns", "on_sm_90", "elsewhere"),
    [
        (16, 64, "int8", "int8"),
        (17, 4096, "mma", ""),
        (17, 5120, "int8", ""),
        (32, 5120, "int8", ""),
        (33, 5120, "mma", ""),
        (8, 5000, "", ""),
    ],
)
def test_rows_are_stored_as_what_multiplies_them(monkeypatch, count, columns, on_sm_90, elsewhere):
    def stored():
        x = torch.empty(count, columns, device="meta")
        return "int8" * worth_int8(x) + "mma" * worth_mma(x)

    assert stored() == elsewhere
    monkeypatch.setattr(row_forms, "unavailable", lambda device: "")
    assert stored() == on_sm_90
