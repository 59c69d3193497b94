"""Row ranges of file tensors that become weights; shapes are checked before loading."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.gguf.file_types import layer_of
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.plans import WeightPlan, WeightSpec
from kinfolk.quant.formats import QuantFormats

logger = logging.getLogger(__name__)

_LISTED = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of leading rows of a file's tensor, and the form it is wanted in."""

    info: TensorInfo
    rows: tuple[int, int] | None
    shape: tuple[int, ...]
    is_vector: bool


def take(spec: WeightSpec, inventory: Inventory) -> Piece:
    """The rows that ``spec`` names; :class:`ModelFormatError` for a missing or misshapen tensor."""
    info = inventory.get(spec.tensor)
    if info is None:
        raise ModelFormatError(
            f"tensor {spec.tensor!r} is missing; weight {spec.name!r} of shape {spec.shape} "
            "needs it. The file is incomplete or was made for another runtime",
            path=inventory.path,
            key=spec.tensor,
        )
    start, stop = spec.rows or (0, info.shape[0])
    found = info.shape if spec.rows is None else (stop - start, *info.shape[1:])
    if not 0 <= start < stop <= info.shape[0]:
        raise ModelFormatError(
            f"tensor {info.name!r} has shape {info.shape}, but weight {spec.name!r} is its rows "
            f"{start} to {stop}",
            path=info.path,
            key=info.name,
        )
    if _significant(found) != _significant(spec.shape):
        part = "" if spec.rows is None else f" in rows {start} to {stop}"
        raise ModelFormatError(
            f"tensor {info.name!r} has shape {found}{part}, weight {spec.name!r} expects "
            f"{spec.shape}",
            path=info.path,
            key=info.name,
        )
    return Piece(info, spec.rows, spec.shape, spec.role == "vector")


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without leading ones, which the file format does not distinguish."""
    leading = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return shape[leading:]


def check_readable(piece: Piece, formats: QuantFormats) -> None:
    info = piece.info
    try:
        block = formats.of_type(info.ggml_type).block
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{info.path}: tensor {info.name!r}: {error}") from None
    if len(info.shape) == 1 and any(row % block for row in piece.rows or ()):
        raise ModelFormatError(
            f"vector {info.name!r} is cut at {piece.rows}, inside a block of {block} numbers",
            path=info.path,
            key=info.name,
        )


def check_unknown(plan: WeightPlan, inventory: Inventory) -> None:
    """A layer with something left out, a bias say, is another layer; the rest is only mentioned."""
    used = {spec.tensor for spec in plan}
    layers = {layer_of(name) for name in used} - {-1}
    unknown = [name for name in inventory if name not in used and name not in plan.ignored]
    where = inventory.path or "the model"
    if missed := [name for name in unknown if layer_of(name) in layers or _stem(name) in used]:
        raise UnsupportedModelError(
            f"{where}: nothing in this model uses {_listed(missed)}, which belong to layers that "
            "it runs: its answers would be wrong. A newer version of the family's plugin may know "
            "them (its weight plan uses a tensor, or ignores it for a reason)"
        )
    if unknown:
        count = len(unknown)
        logger.warning(
            "%s: %d tensors are not used by this model: %s", where, count, _listed(unknown)
        )


def _stem(name: str) -> str:
    """The matrix beside which a bias or a scale stands."""
    return f"{name.rpartition('.')[0]}.weight"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
