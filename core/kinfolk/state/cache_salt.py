"""What stored state belongs to: model, layout and everything else that its numbers depend on.

The hash of the record is the salt of all hashes of tokens, and the name of the folder on the disk.
The record is kept beside the entries, so that a refusal can name the field that differs.
Torch-free.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from kinfolk.checked import Checked
from kinfolk.errors import ModelFormatError
from kinfolk.gguf.file import GGUFFile
from kinfolk.state.chain_hash import HASH_BYTES
from kinfolk.version import __version__

CACHE_FORMAT: Final = 1
"""Version of the files' format; files of another version are never read."""

EDGE_BYTES: Final = 1 << 20
"""Bytes of tensors that are hashed at either end of a model file."""

HEAD_BYTES: Final = 4096
"""Bytes of each tensor that are hashed."""

_DISPLAYED: Final = "model"
_WORDS: Final = {
    "model_hash": "model file",
    "layout_hash": "layout of the state",
    "slice_length": "slice length",
    "activations": "activations",
    "version": "version of kinfolk",
    "format": "format of the files",
}


@dataclass(frozen=True, slots=True)
class SaltRecord(Checked):
    """Everything that stored state depends on.

    ``model`` is a name to show and no part of the salt. ``model_hash`` is :func:`model_hash` of the
    file, ``layout_hash`` that of ``StatePlan``; ``slice_length``: rows of a slice of a prompt;
    ``activations``: how they are stored and multiplied, such as ``bf16 int8``.
    """

    model: str
    model_hash: str
    layout_hash: str
    slice_length: int
    activations: str
    version: str = __version__
    format: int = CACHE_FORMAT

    @property
    def salt(self) -> int:
        """The hash of all fields but ``model``, 128 bits."""
        record = {name: value for name, value in self.as_dict().items() if name != _DISPLAYED}
        text = json.dumps(record, sort_keys=True, separators=(",", ":"))
        return int.from_bytes(blake2b(text.encode(), digest_size=HASH_BYTES).digest(), "big")

    def as_dict(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> SaltRecord:
        """The inverse of :meth:`to_json`. Raises :class:`ValueError` for anything else."""
        record = json.loads(text)
        if not isinstance(record, dict) or record.keys() != {one.name for one in fields(cls)}:
            raise ValueError("the fields are not those of a salt record")
        return cls(**record)

    def differences(self, other: SaltRecord) -> list[str]:
        """The fields in which stored state of ``other`` does not fit this, in words."""
        mine, theirs = self.as_dict(), other.as_dict()
        return [
            f"{words} ({theirs[name]} there, {mine[name]} here)"
            for name, words in _WORDS.items()
            if mine[name] != theirs[name]
        ]


def model_hash(file: GGUFFile) -> str:
    """A hash of a model's contents, 32 hexadecimal digits: of its header, its table of tensors, the
    first and last MiB of the tensors' bytes, and the first 4 KiB of each tensor, of each part of a
    split model. So models that differ in the tensors of some layers alone differ, too.

    Neither name nor time of the file matters, and a copy has the same hash.
    """
    hashed = blake2b(digest_size=HASH_BYTES)
    for index, path in enumerate(file.paths):
        offsets = [one.offset for one in file.inventory.values() if one.part == index]
        for piece in _pieces(path, sorted(offsets)):
            hashed.update(len(piece).to_bytes(8, "little"))
            hashed.update(piece)
    return hashed.hexdigest()


def _pieces(path: Path, offsets: Sequence[int]) -> list[bytes]:
    """The header of a file whose tensors start at ``offsets``, either end of the tensors, and the
    beginning of each."""
    try:
        with path.open("rb") as part:
            size = part.seek(0, 2)
            start = offsets[0] if offsets else size
            part.seek(0)
            header = part.read(start)
            first = part.read(EDGE_BYTES)
            part.seek(max(start, size - EDGE_BYTES))
            found = [header, first, part.read(), size.to_bytes(8, "little")]
            for offset in offsets:
                part.seek(offset)
                found.append(part.read(HEAD_BYTES))
            return found
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelFormatError(f"cannot read the model file: {reason}", path=path) from None
