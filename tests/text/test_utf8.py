"""Invalid UTF-8: the error message, and the number of bytes that each replacement stands for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.text.utf8 import fault, original_sizes

BYTES = st.lists(
    st.sampled_from([b"a", b"\n", "é".encode(), "漢".encode(), "🙂".encode(), b"\xef\xbf\xbd"])
    | st.binary(min_size=1, max_size=4),
    max_size=20,
).map(b"".join)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"caf\xe9", "is not UTF-8: byte 0xE9 at offset 3"),
        (b"ok \xe2\x82", "is not UTF-8: byte 0xE2 at offset 3"),
        ("hi".encode("utf-16"), "is not UTF-8: byte 0xFF at offset 0; it looks like UTF-16"),
    ],
)
def test_a_fault_is_the_first_bad_byte_and_its_place(raw: bytes, said: str) -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        raw.decode("utf-8")
    assert fault(caught.value) == said


@given(raw=BYTES, data=st.data())
def test_original_sizes_add_up_to_the_original(raw: bytes, data: st.DataObject) -> None:
    """However the text is cut, and each piece counts bytes it holds a part of."""
    text = raw.decode("utf-8", "replace").encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    sizes = [stop - start for start, stop in pairwise(cuts)]
    found = original_sizes(raw, sizes)
    assert len(found) == len(sizes)
    assert sum(found) == len(raw)
    assert min(found, default=0) >= 0


def test_a_replaced_sequence_counts_for_its_own_bytes() -> None:
    raw = b"a\xe9b\xf0\x9f\x99c\xef\xbf\xbd\xff"
    pieces = ["a", "\ufffd", "b", "\ufffd", "c", "\ufffd", "\ufffd"]
    assert raw.decode("utf-8", "replace") == "".join(pieces)
    assert original_sizes(raw, [len(piece.encode()) for piece in pieces]) == [1, 1, 1, 3, 1, 3, 1]


def test_text_that_is_utf8_keeps_its_sizes() -> None:
    assert original_sizes("aé漢".encode(), [1, 2, 3]) == [1, 2, 3]
