"""The block formats of weights, and finding one by the type of a tensor or by name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from kinfolk.descriptors import QuantFormat
from kinfolk.errors import PluginError, UnsupportedModelError
from kinfolk.gguf.tensor_types import TENSOR_TYPES, TensorType

K = TypeVar("K", int, str)

logger = logging.getLogger(__name__)

_TYPE_IDS: Final = {kind.name: number for number, kind in TENSOR_TYPES.items()}


def _builtin(name: str, *, encoder: str = "") -> QuantFormat:
    kind = TENSOR_TYPES[_TYPE_IDS[name]]
    suffix = name.lower()
    return QuantFormat(
        name=name,
        ggml_type=_TYPE_IDS[name],
        block=kind.block,
        bytes=kind.bytes,
        dequantize=f"kinfolk.quant.reference:dequantize_{suffix}",
        quantize=f"kinfolk.quant.{encoder}:quantize_{suffix}" if encoder else "",
    )


BUILTIN_FORMATS: Final[list[QuantFormat]] = [
    _builtin("F32", encoder="encode"),
    _builtin("F16", encoder="encode"),
    _builtin("BF16", encoder="encode"),
    _builtin("Q8_0", encoder="encode"),
    _builtin("Q4_0", encoder="encode"),
    _builtin("Q4_1", encoder="encode"),
    _builtin("Q5_0", encoder="encode"),
    _builtin("Q5_1", encoder="encode"),
    _builtin("Q2_K", encoder="encode_k"),
    _builtin("Q3_K", encoder="encode_k"),
    _builtin("Q4_K", encoder="encode_k"),
    _builtin("Q5_K", encoder="encode_k"),
    _builtin("Q6_K", encoder="encode_k"),
    _builtin("IQ4_NL", encoder="encode"),
    _builtin("IQ4_XS"),
    _builtin("MXFP4"),
]

PLAIN: Final = frozenset({"F32", "F16", "BF16"})
"""Formats of plain numbers: nothing to gain from keeping their bytes as they are."""


class QuantFormats:
    """The formats known to one process, built from a list; there is no global registry.

    Raises :class:`PluginError` when two formats claim a name or a type.
    """

    def __init__(self, formats: Iterable[QuantFormat] = BUILTIN_FORMATS):
        self._by_type: dict[int, QuantFormat] = {}
        self._by_name: dict[str, QuantFormat] = {}
        self._fallbacks: dict[int, QuantFormat] = {}
        for format_ in formats:
            self._claim(self._by_type, format_.ggml_type, format_)
            self._claim(self._by_name, format_.name.upper(), format_)

    def __iter__(self) -> Iterator[QuantFormat]:
        return iter(self._by_type.values())

    def __len__(self) -> int:
        return len(self._by_type)

    def named(self, name: str) -> QuantFormat:
        """The format called ``name``, in any case. Raises ``KeyError``."""
        return self._by_name[name.upper()]

    def of_type(self, ggml_type: int) -> QuantFormat:
        """The format of a tensor type, if need be one that gguf-py dequantises.

        Raises :class:`UnsupportedModelError` when nothing can read the type.
        """
        known = self._by_type.get(ggml_type) or self._fallbacks.get(ggml_type)
        if known is not None:
            return known
        return self._fallbacks.setdefault(ggml_type, _fallback(ggml_type))

    def is_native(self, ggml_type: int) -> bool:
        """Whether the format was registered, so that its bytes may stay as they are."""
        return ggml_type in self._by_type

    def tensor_types(self) -> Mapping[int, TensorType]:
        """What a file may contain: the types of the specification and those of plugins."""
        registered = {
            number: TensorType(found.name, found.block, found.bytes)
            for number, found in self._by_type.items()
        }
        return {**TENSOR_TYPES, **registered}

    def blocks(self) -> Mapping[str, int]:
        """Type name -> the numbers in a block of it."""
        return {kind.name: kind.block for kind in self.tensor_types().values()}

    @staticmethod
    def _claim(table: dict[K, QuantFormat], key: K, format_: QuantFormat) -> None:
        other = table.setdefault(key, format_)
        if other is not format_:
            raise PluginError(
                f"two quant formats claim {key!r}: {other.name} ({other.dequantize}) and "
                f"{format_.name} ({format_.dequantize}); remove one of the plugins"
            )


def _fallback(ggml_type: int) -> QuantFormat:
    # Imported late: listing the formats, as discovery does, needs no numpy.
    from kinfolk.quant.fallback import can_read

    kind = TENSOR_TYPES.get(ggml_type)
    if kind is None or not can_read(kind.name, kind.bytes):
        name = f"number {ggml_type}" if kind is None else kind.name
        raise UnsupportedModelError(
            f"tensors of type {name} cannot be read here; use a file in another quantisation"
        )
    logger.warning(
        "weights of type %s are dequantised when the model is loaded: they take the memory of "
        "unquantised ones",
        kind.name,
    )
    return QuantFormat(
        kind.name, ggml_type, kind.block, kind.bytes, f"kinfolk.quant.fallback:{kind.name}"
    )
