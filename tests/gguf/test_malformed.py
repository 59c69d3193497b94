"""Every defect of a file gives an error of one line that states it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.file import GGUFFile

ABSURD = 2**63 - 1


def add(build, raw, *entries):
    raw.entries.extend(build.entry(*each) for each in entries)
    return raw


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


DAMAGE: dict[str, tuple[Callable, str]] = {
    "wrong magic": (lambda b: b.file(magic=b"GGML"), "not a GGUF file: it starts with b'GGML'"),
    "version 1": (lambda b: b.file(version=1), "version 1 is not supported"),
    "version 4": (lambda b: b.file(version=4), "version 4 is not supported"),
    "big-endian": (lambda b: b.file(version=3 << 24), "big-endian"),
    "absurd tensor count": (lambda b: b.file(tensor_count=ABSURD), "the number of tensors is"),
    "absurd entry count": (
        lambda b: b.file(entry_count=ABSURD),
        "the number of metadata entries is",
    ),
    "one entry too many": (
        lambda b: b.file(entry_count=2),
        "key 'a' has a value of unknown type|the length of|inside",
    ),
    "absurd key length": (
        lambda b: b.file(entries=[struct.pack("<Q", ABSURD)]),
        "the length of metadata key 0 is",
    ),
    "key not UTF-8": (
        lambda b: add(b, b.file(), (b"\xff\xfe", 4, u32(1))),
        "metadata key 1 at byte .* is not UTF-8",
    ),
    "value not UTF-8": (
        lambda b: add(b, b.file(), ("k", 8, b.text(b"\xc3("))),
        "the value of key 'k' at byte .* is not UTF-8",
    ),
    "duplicate key": (
        lambda b: add(b, b.file(), ("k", 4, u32(1)), ("k", 4, u32(1))),
        "metadata key 'k' occurs twice",
    ),
    "unknown value type": (
        lambda b: add(b, b.file(), ("k", 13, u32(1))),
        "key 'k' has a value of unknown type 13",
    ),
    "unknown element type": (
        lambda b: add(b, b.file(), ("k", 9, array(99, 1))),
        "key 'k' has a value of unknown type 99",
    ),
    "bool that is neither": (
        lambda b: add(b, b.file(), ("k", 7, b"\x02")),
        "key 'k' is a bool with value 2",
    ),
    "bools that are neither": (
        lambda b: add(b, b.file(), ("k", 9, array(7, 2, b"\x00\x07"))),
        "key 'k' is an array of bools with other values",
    ),
    "nested array": (
        lambda b: add(b, b.file(), ("k", 9, array(9, 1, array(4, 1, u32(1))))),
        "key 'k' is an array of arrays",
    ),
    "absurd array length": (
        lambda b: add(b, b.file(), ("k", 9, array(12, ABSURD // 4))),
        "the length of the array 'k' is",
    ),
    "absurd string array length": (
        lambda b: add(b, b.file(), ("k", 9, array(8, ABSURD))),
        "the length of the array 'k' is",
    ),
    "absurd string in an array": (
        lambda b: add(b, b.file(), ("k", 9, array(8, 2, struct.pack("<Q", ABSURD)))),
        "entry 0 of 2 of key 'k' runs beyond the end",
    ),
    "string array that ends early": (
        lambda b: b.file(entries=[b.entry("k", 9, array(8, 20, b.text("a") * 12))]),
        "of key 'k' runs beyond the end|the number of tensors|truncated",
    ),
    "alignment of a wrong type": (
        lambda b: add(b, b.file(), ("general.alignment", 8, b.text("32"))),
        "key 'general.alignment' is string, expected u32",
    ),
    "alignment zero": (
        lambda b: add(b, b.file(), ("general.alignment", 4, u32(0))),
        "key 'general.alignment' is 0, expected a power of two",
    ),
    "alignment no power of two": (
        lambda b: add(b, b.file(), ("general.alignment", 4, u32(48))),
        "key 'general.alignment' is 48, expected a power of two",
    ),
    "nameless tensor": (
        lambda b: b.file(tensors=[b.tensor("", (8,), 0, 0)]),
        "tensor 0 has an empty name",
    ),
    "tensor name not UTF-8": (
        lambda b: b.file(tensors=[b.tensor(b"\x80", (8,), 0, 0)]),
        "the name of tensor 0 at byte .* is not UTF-8",
    ),
    "five dimensions": (
        lambda b: b.file(tensors=[b.tensor("a", (1, 1, 1, 1, 8), 0, 0)]),
        "tensor 'a' has 5 dimensions",
    ),
    "absurd dimensions": (
        lambda b: b.file(tensors=[b.tensor("a", (8,), 0, 0, dims=2**32 - 1)]),
        "tensor 'a' has 4294967295 dimensions",
    ),
    "empty tensor": (
        lambda b: b.file(tensors=[b.tensor("a", (8, 0), 0, 0)]),
        r"tensor 'a' has an empty shape \(0, 8\)",
    ),
    "unknown tensor type": (
        lambda b: b.file(tensors=[b.tensor("a", (8,), 33, 0)]),
        "tensor 'a' has the unknown type 33",
    ),
    "rows that are no blocks": (
        lambda b: b.file(tensors=[b.tensor("a", (48,), 8, 0)]),
        "tensor 'a' has rows of 48 numbers, not a multiple of the 32 in a block of Q8_0",
    ),
    "duplicate tensor": (
        lambda b: b.file(tensors=[b.tensor("a", (8,), 0, 0), b.tensor("a", (8,), 0, 32)]),
        "tensor 'a' occurs twice",
    ),
    "misaligned tensor": (
        lambda b: b.file(tensors=[b.tensor("a", (4,), 0, 16)]),
        "tensor 'a' is at offset 16, which is not aligned to 32 bytes",
    ),
    "overlapping tensors": (
        lambda b: b.file(tensors=[b.tensor("a", (16,), 0, 0), b.tensor("b", (8,), 0, 32)]),
        "tensors 'a' and 'b' overlap",
    ),
    "the same bytes twice": (
        lambda b: b.file(tensors=[b.tensor("a", (8,), 0, 32), b.tensor("b", (8,), 0, 32)]),
        "tensors 'a' and 'b' overlap",
    ),
    "tensor beyond the file": (
        lambda b: b.file(tensors=[b.tensor("a", (17,), 0, 0)]),
        "tensor 'a' needs bytes .* but the file has",
    ),
    "offset beyond the file": (
        lambda b: b.file(tensors=[b.tensor("a", (8,), 0, 2**62)]),
        "tensor 'a' needs bytes .* but the file has",
    ),
    "size that would overflow": (
        lambda b: b.file(tensors=[b.tensor("a", (2**62, 2**62), 0, 0)]),
        "tensor 'a' needs bytes .* but the file has",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_in_one_line(build, write, damage):
    make, message = DAMAGE[damage]
    path = write(make(build))
    with pytest.raises(ModelFormatError, match=message) as raised:
        GGUFFile.open(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_file_cut_anywhere_is_truncated(build, tmp_path):
    whole = build.file().to_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFormatError):
            GGUFFile.open(path)


def test_a_missing_file_a_folder_and_an_empty_file_are_named(tmp_path):
    empty = tmp_path / "empty.gguf"
    empty.touch()
    for path, message in [
        (tmp_path / "none.gguf", "cannot open the model file: No such file"),
        (tmp_path, "cannot open the model file: Is a directory"),
        (empty, "too short to be a GGUF file"),
    ]:
        with pytest.raises(ModelFormatError, match=message) as raised:
            GGUFFile.open(path)
        assert raised.value.path == path


def test_an_error_carries_the_key_or_tensor_at_fault(build, write):
    with pytest.raises(ModelFormatError) as raised:
        GGUFFile.open(write(build.file(tensors=[build.tensor("a", (8,), 33, 0)])))
    assert raised.value.key == "a"
