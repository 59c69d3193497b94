"""Estimates the bytes of a plan's weights before loading."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Literal

import torch

from kinfolk.gguf.file_types import layer_of
from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import WeightPlan
from kinfolk.quant.formats import PLAIN, QuantFormats
from kinfolk.weights.expert_records import expert_pieces, record_layout
from kinfolk.weights.packer import Packer
from kinfolk.weights.pieces import Piece, take

if TYPE_CHECKING:
    from kinfolk_kernels.planes import Activations

Form = Literal["packed", "blocks", "dense"]
"""How quantised matrices are kept: repacked for kernels, as in the file, or dequantised."""


def weight_bytes(
    plan: WeightPlan,
    inventory: Inventory,
    formats: QuantFormats,
    *,
    dtype: torch.dtype,
    form: Form,
    activations: Activations = "int8",
) -> int:
    """Bytes of all weights; rows of a tensor with several names count once.

    Raises :class:`ModelFormatError` for a tensor that is missing or has another shape.
    """
    pieces = dict.fromkeys(take(spec, inventory) for spec in plan)
    if form == "packed":
        packer = Packer(torch.device("meta"), activations)
        return sum(_planes(piece, packer) or _numbers(piece, dtype) for piece in pieces)
    if form == "blocks":
        return sum(_blocks(piece, formats) or _numbers(piece, dtype) for piece in pieces)
    return sum(_numbers(piece, dtype) for piece in pieces)


def record_bytes(
    plan: WeightPlan,
    inventory: Inventory,
    formats: QuantFormats,
    *,
    layers: Iterable[int],
    dtype: torch.dtype,
    form: Form,
    activations: Activations = "int8",
) -> dict[int, int]:
    """Bytes of the record of an expert, for each of ``layers`` whose experts can have records."""
    packer = Packer(torch.device("meta"), activations) if form == "packed" else None
    keep = form == "blocks"
    return {
        layer: record_layout(pieces, formats, dtype, packer=packer, keep_quantised=keep).nbytes
        for layer, pieces in expert_pieces(plan, inventory, layers).items()
    }


def without_experts(plan: WeightPlan, layers: Container[int]) -> WeightPlan:
    """The plan without the experts of these layers."""
    kept = (w for w in plan if w.role != "experts" or layer_of(w.tensor) not in layers)
    return replace(plan, weights=tuple(kept))


def _numbers(piece: Piece, dtype: torch.dtype) -> int:
    return prod(piece.shape) * (4 if piece.is_vector else dtype.itemsize)


def _blocks(piece: Piece, formats: QuantFormats) -> int:
    """0 if the piece does not stay as it is in the file."""
    plain = piece.is_vector or piece.info.type_name in PLAIN
    if plain or not formats.is_native(piece.info.ggml_type):
        return 0
    return piece.info.nbytes * prod(piece.shape) // prod(piece.info.shape)


def _planes(piece: Piece, packer: Packer) -> int:
    """0 if the piece has no planes."""
    kind = piece.info.type_name
    if piece.is_vector or packer.refuses(kind, piece.shape):
        return 0
    return packer.nbytes(kind, piece.shape)
