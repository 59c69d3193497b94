"""Compares the sums beside int8 rows with the rows."""

from __future__ import annotations

from kinfolk_kernels.int8_rows import MAX_SUMS_ROWS, Int8Rows, dequantize, sums_of


def assert_sums_are_those_of_the_rows(rows: Int8Rows) -> None:
    """Two bfloat16 have a sum up to 2^-16 of it. One row, and many, have none."""
    if not 1 < len(rows.words) <= MAX_SUMS_ROWS:
        assert rows.sums is None
        return
    expected = dequantize(rows).double().unflatten(1, (-1, 32)).sum(2)
    error = (sums_of(rows).double() - expected).abs()
    # What the steps of the numbers were rounded to when they were added counts as well.
    assert (error <= expected.abs() * 2**-15 + float(rows.scales.max()) * 1e-3).all()
