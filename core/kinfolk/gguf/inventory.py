"""Tensor inventory of a model file: name, shape, type, offset and bytes of each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.values import ByteArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor table.

    ``shape`` is in torch order, ``shape[-1]`` the numbers of a row. ``offset`` is in bytes from the
    start of ``path``; ``part`` is the index of that file among the parts of a split model.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    type_name: str
    path: Path
    part: int
    offset: int
    nbytes: int

    @property
    def rows(self) -> int:
        """Rows of the tensor: the product of all dimensions but the last."""
        return prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.nbytes // self.rows


class Inventory(Mapping[str, TensorInfo]):
    """Tensors by name, in the order of the file.

    ``read`` returns the bytes of a tensor as a flat uint8 view; ``None`` for an inventory of names
    and shapes alone. Raises :class:`ModelFormatError` if a name occurs twice.
    """

    def __init__(
        self,
        tensors: Iterable[TensorInfo],
        read: Callable[[TensorInfo], ByteArray] | None = None,
        path: Path | None = None,
    ):
        self.path = path
        self._read = read
        self._tensors: dict[str, TensorInfo] = {}
        for tensor in tensors:
            if tensor.name in self._tensors:
                raise ModelFormatError(
                    f"tensor {tensor.name!r} occurs twice", path=tensor.path, key=tensor.name
                )
            self._tensors[tensor.name] = tensor

    def __getitem__(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def bytes(self, name: str) -> ByteArray:
        """The stored bytes of a tensor: a read-only view uint8 [rows, row_bytes] into the map.

        Raises ``KeyError`` for an unknown name, ``ValueError`` for an inventory without bytes or a
        closed file.
        """
        tensor = self._tensors[name]
        if self._read is None:
            raise ValueError(f"this inventory lists tensor {name!r} but holds no bytes")
        return self._read(tensor).reshape(tensor.rows, tensor.row_bytes)
