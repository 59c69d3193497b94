"""Whether the core can use what a model hook answered.

Each check returns what is wrong, as the rest of a sentence about the value, or the empty string.
Only type, shape and kind of number are looked at: nothing is read from a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, get_args

from kinfolk.descriptors import resolve
from kinfolk.dtypes import DtypeName
from kinfolk.plans import (
    Codec,
    Paged,
    Placement,
    PoolRule,
    Recurrent,
    RecurrentTensor,
    Rotation,
    Section,
    Shared,
    SlotMapping,
    StatePlan,
    StorageFormat,
)

KEPT: Final = "kinfolk.spec.verify:Kept"
"""By name, because verification stands above the hooks and imports torch."""


def check_state_plan(value: object) -> str:
    if not isinstance(value, StatePlan):
        return "is no kinfolk.plans.StatePlan"
    if not isinstance(value.layers, tuple) or not value.layers:
        return "has no layers; layers is a tuple with one entry for each layer"
    for index, layer in enumerate(value.layers):
        problem = _layer(layer)
        if problem:
            return f"has a layer {index} that {problem}"
    return ""


def check_step_fn(value: object) -> str:
    return "" if callable(value) else "cannot be called; it must be a function (batch, view)"


def check_kept(value: object) -> str:
    if not isinstance(value, resolve(KEPT)):
        return f"is no {KEPT.replace(':', '.')}"
    shapes = []
    for name, dimensions in (("path", 2), ("n_keep", 1), ("next", 1)):
        tensor: Any = getattr(value, name)
        shape, kind = getattr(tensor, "shape", None), str(getattr(tensor, "dtype", ""))
        if shape is None or kind != "torch.int64":
            return f"has {name} of {kind or type(tensor).__name__}; it must be an int64 tensor"
        if len(shape) != dimensions:
            return f"has {name} of shape {list(shape)}; it must have {dimensions} dimensions"
        shapes.append(list(shape))
    path, n_keep, following = shapes
    if not (path[0] == n_keep[0] == following[0]):
        return (
            f"has path {path}, n_keep {n_keep} and next {following}; "
            "the first dimension of all three is the number of lanes"
        )
    devices = {str(getattr(value, name).device) for name in ("path", "n_keep", "next")}
    if len(devices) > 1:
        return f"has its tensors on {' and '.join(sorted(devices))}; they must be on one device"
    return ""


def check_slot_mapping(value: object) -> str:
    if not isinstance(value, SlotMapping):
        return "is no kinfolk.plans.SlotMapping"
    for index, rule in enumerate(value.rules):
        if not isinstance(rule, PoolRule):
            return f"has {rule!r} as rule {index}; it must be a PoolRule"
        if not (isinstance(rule.sink, int) and isinstance(rule.tail, int)):
            return f"has rule {index} with sink {rule.sink!r} and tail {rule.tail!r}; both are ints"
        if rule.sink < 0 or rule.tail < 1:
            return (
                f"has rule {index} that keeps the first {rule.sink} and the last {rule.tail} "
                "chunks; the last one is always written to"
            )
    return ""


def check_placement(value: object) -> str:
    if not isinstance(value, Placement):
        return "is no kinfolk.plans.Placement"
    for layer, bays in enumerate(value.bays):
        if not (isinstance(bays, tuple) and all(isinstance(expert, int) for expert in bays)):
            return f"has {bays!r} for layer {layer}; it must be a tuple of expert ids"
    return ""


CHECKS: Final[Mapping[str, Callable[[object], str]]] = MappingProxyType(
    {
        "allocate_cache": check_state_plan,
        "build_graph": check_step_fn,
        "map_slots": check_slot_mapping,
        "place_experts": check_placement,
        "verify": check_kept,
    }
)


def _layer(layer: object) -> str:
    match layer:
        case Paged():
            return _paged(layer)
        case Recurrent():
            return _recurrent(layer)
        case Shared():  # its target was checked when the plan was made
            return ""
        case _:
            return f"is {layer!r}; it must be Paged, Recurrent or Shared"


def _paged(layer: Paged) -> str:
    if layer.window is not None and not _positive(layer.window):
        return f"has window {layer.window!r}; it must be a positive int or None"
    if not isinstance(layer.sections, tuple) or not layer.sections:
        return "has no sections"
    names = set()
    for section in layer.sections:
        if not isinstance(section, Section):
            return f"has {section!r} among its sections"
        if section.name in names:
            return f"has two sections {section.name!r}"
        names.add(section.name)
        if not (_positive(section.heads) and _positive(section.dim)):
            return (
                f"has section {section.name!r} of {section.heads!r} heads and dim "
                f"{section.dim!r}; both must be positive ints"
            )
        if not _known(section.codec):
            return f"has section {section.name!r} with the unknown codec {section.codec!r}"
    return ""


def _recurrent(layer: Recurrent) -> str:
    if not isinstance(layer.tensors, tuple) or not layer.tensors:
        return "has no tensors"
    names = set()
    for tensor in layer.tensors:
        if not isinstance(tensor, RecurrentTensor):
            return f"has {tensor!r} among its tensors"
        if tensor.name in names:
            return f"has two tensors {tensor.name!r}"
        names.add(tensor.name)
        if not (isinstance(tensor.shape, tuple) and all(map(_positive, tensor.shape))):
            return f"has tensor {tensor.name!r} of shape {tensor.shape!r}"
        if tensor.dtype not in get_args(DtypeName):
            return f"has tensor {tensor.name!r} of the unknown dtype {tensor.dtype!r}"
    return ""


def _known(codec: object) -> bool:
    return (
        isinstance(codec, Codec)
        and codec.format in get_args(StorageFormat)
        and codec.rotation in get_args(Rotation)
    )


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
