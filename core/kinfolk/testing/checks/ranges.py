"""Checks that metadata numbers out of range are refused by name, before memory is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.config import MOST_LAYERS
from kinfolk.engine.loading import load_model
from kinfolk.errors import KinfolkError, ModelFormatError, UnsupportedModelError
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.values import Value
from kinfolk.quant.formats import QuantFormats
from kinfolk.testing.kit import Kit
from kinfolk.testing.marks import each_tiny, needs
from kinfolk.testing.model_files import rewrite
from kinfolk.weights.pieces import check_unknown
from kinfolk.weights.size import weight_bytes

LARGE_INTEGER: Final = 3_000_000
"""More than any count of a model but its positions, and small enough that a test survives it."""

INTEGERS: Final = (0, -1, LARGE_INTEGER, 300_000_000, 2**31, 2**63)
FLOAT_EDGES: Final = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 2.0**31)
_CONTEXT: Final = 64


class RangeChecks:
    """Every number that a family reads has a range."""

    @each_tiny
    @needs("tiny")
    def test_numbers_out_of_range_are_named(self, kinfolk_kit: Kit) -> None:
        """An impossible number is an error that names its key; with any other the model runs."""
        for key in numeric_keys(kinfolk_kit):
            for value in replacements(kinfolk_kit.file.metadata, key):
                try:
                    _try(kinfolk_kit, key, value)
                except Exception as error:
                    raise AssertionError(
                        f"key {key!r} = {_words(value)} led to {type(error).__name__}: {error}"
                    ) from error


class Watched(Metadata):
    """Metadata that records the keys that are read."""

    def __init__(self, values: Mapping[str, Value], asked: set[str]) -> None:
        super().__init__(values)
        self._asked = asked

    def __contains__(self, key: object) -> bool:
        self._asked.add(str(key))
        return super().__contains__(key)

    def value(self, key: str) -> Value:
        self._asked.add(key)
        return super().value(key)


def numeric_keys(kit: Kit) -> list[str]:
    """The architecture's keys that the family reads and that hold numbers."""
    meta, asked = kit.file.metadata, set[str]()
    values = {key: meta.value(key) for key in meta}
    kit.family.read_config(Watched(values, asked))
    prefix = meta.arch_key("")
    other = {key for key, value in values.items() if value.type in ("bool", "string")}
    return sorted(key for key in asked - other if key.startswith(prefix))


def replacements(meta: Metadata, key: str) -> Iterator[Value]:
    """Values that replace a number, or one entry of an array."""
    scalars = [Value("i64" if number < 2**63 else "u64", number) for number in INTEGERS]
    yield from [*scalars, *(Value("f32", number) for number in FLOAT_EDGES)]
    if key not in meta or not meta.value(key).is_array:
        return
    stored = np.asarray(meta.value(key).content)
    yield Value("i32", stored[:-1].astype(np.int32), True)
    for whole in INTEGERS[:-1]:  # the last one does not fit i64
        yield Value("i64", _with_last(stored.astype(np.int64), whole), True)
    for number in FLOAT_EDGES:
        yield Value("f32", _with_last(stored.astype(np.float32), number), True)


def _with_last(array: npt.NDArray[Any], number: float) -> npt.NDArray[Any]:
    array[-1] = number
    return array


def _try(kit: Kit, key: str, value: Value) -> None:
    """Read and load a file with one key changed. Raises ``AssertionError`` for a wrong outcome."""
    meta = kit.file.metadata
    values = {name: meta.value(name) for name in meta} | {key: value}
    config = _refusal(lambda: kit.family.read_config(Metadata(values, kit.path)))
    if isinstance(config, KinfolkError):
        assert key in str(config), f"the error does not name it: {config}"
    elif config != kit.config:
        assert config.layers <= MOST_LAYERS, (
            f"{config.layers} layers; read their number with kinfolk.config.layer_count"
        )
        if error := _refusal(lambda: _check_weights(kit, config)):
            names = [key, getattr(error, "key", None) or key, *kit.file.inventory]
            said = any(name in str(error) for name in names)
            assert said, f"the error names neither it nor a tensor: {error}"
        else:
            _run(kit, {key: value})


def _refusal(action: Callable[[], Any]) -> Any:
    """The result of an action, or the error by which it refuses the file."""
    try:
        return action()
    except (ModelFormatError, UnsupportedModelError) as error:
        return error


def _check_weights(kit: Kit, config: Any) -> None:
    inventory = kit.file.inventory
    plan = kit.family.weight_plan(config, inventory)
    weight_bytes(plan, inventory, QuantFormats(), dtype=torch.float32, form="dense")
    check_unknown(plan, inventory)


def _run(kit: Kit, keys: Mapping[str, Value]) -> None:
    path = rewrite(kit.file, kit.folder / "ranges.gguf", keys=keys)
    loaded = load_model(path, kit.settings(context=_CONTEXT, slots=1, checkpoints=0), kit.registry)
    logits = kit.logits(loaded, kit.tokens[: _CONTEXT // 2])
    loaded.file.close()
    assert bool(logits.isfinite().all()), "logits that are not finite"


def _words(value: Value) -> str:
    content: Any = value.content
    return f"{content.tolist()}" if value.is_array else f"{content} ({value.type})"
