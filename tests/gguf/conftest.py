"""Builds GGUF files byte by byte, so that tests can break every single field."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "data" / "cases"


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def tensor(
    name: str | bytes, ne: tuple[int, ...], kind: int, offset: int, dims: int | None = None
) -> bytes:
    head = text(name) + struct.pack("<I", len(ne) if dims is None else dims)
    return head + struct.pack(f"<{len(ne)}Q", *ne) + struct.pack("<IQ", kind, offset)


@dataclass
class RawFile:
    """The fields of a small valid file: two F32 tensors and an architecture."""

    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    entry_count: int | None = None
    entries: list[bytes] = field(
        default_factory=lambda: [entry("general.architecture", 8, text("tiny"))]
    )
    tensors: list[bytes] = field(
        default_factory=lambda: [tensor("a", (4, 2), 0, 0), tensor("b", (8,), 0, 32)]
    )
    alignment: int = 32
    data: bytes = bytes(range(64))

    def to_bytes(self) -> bytes:
        count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        entries = len(self.entries) if self.entry_count is None else self.entry_count
        head = self.magic + struct.pack("<IQQ", self.version, count, entries)
        head += b"".join(self.entries) + b"".join(self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data


class Build:
    """The functions above as a fixture, because test folders are not packages."""

    file = RawFile
    text = staticmethod(text)
    entry = staticmethod(entry)
    tensor = staticmethod(tensor)


@pytest.fixture
def build() -> Build:
    return Build()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[RawFile], Path]:
    def run(raw: RawFile, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(raw.to_bytes())
        return path

    return run


@pytest.fixture(params=sorted(CASES.glob("*.gguf")), ids=lambda path: path.stem)
def case_path(request: pytest.FixtureRequest) -> Path:
    return request.param
