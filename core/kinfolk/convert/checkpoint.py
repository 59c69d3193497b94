"""A Hugging Face model directory: its configuration, and its tensors one piece at a time."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np

from kinfolk.config import MOST_LAYERS
from kinfolk.convert.plan import FloatArray, Shape, Source
from kinfolk.errors import ConversionError
from kinfolk.gguf.ranges import MAX_INT32, Range, shown

T = TypeVar("T")

CONFIG: Final = "config.json"
TIED: Final = "tie_word_embeddings"
"""The key that says whether the embedding is the output matrix."""

_LAYERS: Final = "num_hidden_layers"
_PIECE: Final = 1 << 22
"""Numbers compared at a time."""

_FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})


class Config:
    """Typed access to a JSON object; complaints name the file and the key.

    A key without ``default`` must be there. ``null`` counts as missing. The object remembers which
    keys were read and which are ignored for a reason; :meth:`refuse_unread` refuses the others.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = ""):
        self.path = path
        self._values = values
        self._prefix = prefix
        self._read: set[str] = set()
        self._sections: dict[str, Config] = {}
        self._reasons: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def integer(
        self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_INT32
    ) -> int:
        value = int(self._get(key, default, int, "an integer"))
        self._check_range(key, value, Range(minimum, maximum))
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite float."""
        value = float(self._get(key, default, (int, float), "a number"))
        self._check_range(key, value, Range())
        return value

    def layers(self) -> int:
        """The number of layers. Read it before anything that has an entry for each."""
        return self.integer(_LAYERS, maximum=MOST_LAYERS)

    def flag(self, key: str, default: bool | None = None) -> bool:
        return bool(self._get(key, default, bool, "true or false"))

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._get(key, default, str, "a string"))

    def items(self, key: str, kind: type[T], default: Sequence[T] | None = None) -> list[T]:
        """A list whose elements are of one kind."""
        values = self._get(key, None if default is None else list(default), list, "a list")
        if not all(isinstance(item, kind) for item in values):
            raise self.fail(key, f"is {values!r}, expected a list of {kind.__name__}")
        return list(values)

    def per_layer(self, key: str, known: Collection[str], default: Sequence[str]) -> list[str]:
        """One of the known words for each of the layers."""
        layers, words = self.layers(), self.items(key, str, default)
        if len(words) != layers or not set(words) <= set(known):
            raise self.fail(
                key,
                f"has {len(words)} entries of the kinds {sorted(set(words))}, expected {layers} of "
                f"{' and '.join(map(repr, known))}: as many as '{_LAYERS}'",
            )
        return words

    def choice(self, key: str, meanings: Mapping[Any, T], default: T) -> T:
        """Map the value by ``meanings``; refuses values that it lacks."""
        value = self._look(key)
        if value is None:
            return default
        if not isinstance(value, str | int | float) or value not in meanings:
            known = ", ".join(repr(choice) for choice in meanings)
            raise self.fail(key, f"is {value!r}, expected one of {known}")
        return meanings[value]

    def section(self, key: str) -> Config:
        """The object under ``key``, the same at every call; empty if it is missing."""
        values = self._get(key, {}, dict, "an object")
        if key not in self._sections:
            self._sections[key] = Config(values, self.path, f"{self._prefix}{key}.")
        return self._sections[key]

    def require(self, key: str, expected: object, default: object) -> None:
        """Refuse a value other than the one that is implemented."""
        self._read.add(key)
        value = self._values.get(key, default)
        if value is not None and value != expected:
            raise self.fail(key, f"is {value!r}; only {expected!r} can be converted")

    def require_usual(self, values: Mapping[str, object]) -> None:
        """Refuse, key by key, values other than these, which missing keys have too."""
        for key, value in values.items():
            self.require(key, value, value)

    def fail(self, key: str, message: str) -> ConversionError:
        return ConversionError(f"{self.path}: key '{self._prefix}{key}' {message}")

    # -- what becomes of every key ----------------------------------------------------------------

    def ignore(self, reasons: Mapping[str, str]) -> None:
        """State why keys, with all that stands under them, change nothing in the file.

        Keys that are not there may be named. For a key with an effect at other values use
        :meth:`require`.
        """
        self._reasons.update(reasons)

    def ignored(self) -> dict[str, str]:
        """The keys that are there and ignored, by full name, with their reasons."""
        found = {
            f"{self._prefix}{key}": reason for key, reason in self._reasons.items() if key in self
        }
        for section in self._sections.values():
            found |= section.ignored()
        return found

    def unread(self) -> dict[str, object]:
        """The keys that are neither read nor ignored, by full name, with their values."""
        found: dict[str, object] = {}
        for key, value in self._values.items():
            if value is None or key in self._reasons:
                continue
            if key in self._sections:
                found |= self._sections[key].unread()
            elif key not in self._read:
                found[f"{self._prefix}{key}"] = value
        return found

    def refuse_unread(self) -> None:
        """Refuse keys that no code read: they might change the model's results."""
        unread = self.unread()
        if unread:
            listed = ", ".join(f"'{key}' = {_short(value)}" for key, value in unread.items())
            noun = "key" if len(unread) == 1 else "keys"
            raise ConversionError(
                f"{self.path}: the conversion does not know the {noun} {listed}, and the file "
                "might give other numbers than the model. Take out what the model does not depend "
                "on, or use a version of the family that knows it"
            )

    def afresh(self) -> Config:
        """A copy in which no key is marked as read or ignored."""
        return Config(self._values, self.path, self._prefix)

    def _check_range(self, key: str, found: float, known: Range) -> None:
        if found not in known:
            raise self.fail(key, f"is {shown(found)}, expected {known.wanted(found)}")

    def _look(self, key: str) -> Any:
        self._read.add(key)
        return self._values.get(key)

    def _get(self, key: str, default: Any, kind: Any, expected: str) -> Any:
        value = self._look(key)
        if value is None:
            value = default
        if value is None:
            raise self.fail(key, "is missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fail(key, f"is {value!r}, expected {expected}")
        return value


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor stands: its name there, the file, its shape and element type."""

    name: str
    path: Path
    shape: Shape
    dtype: str


class HFCheckpoint:
    """A directory with ``config.json`` and ``*.safetensors``; opens and checks, loads nothing.

    Raises :class:`ConversionError` on anything that is missing or damaged.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        if not directory.is_dir():
            raise ConversionError(
                f"{directory} is not a directory; name the directory of a model with {CONFIG} "
                "and its *.safetensors files"
            )
        path = directory / CONFIG
        self.config = Config(read_json(path), path)
        self._shards: dict[Path, Any] = {}
        self.tensors: Mapping[str, StoredTensor] = {t.name: t for t in self._scan()}

    def __enter__(self) -> HFCheckpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._shards.clear()

    def rename(self, name_of: Callable[[str], str]) -> None:
        """Know the tensors by other names. Raises when two of them would share one."""
        renamed: dict[str, StoredTensor] = {}
        for name, tensor in self.tensors.items():
            other = renamed.setdefault(name_of(name), tensor)
            if other is not tensor:
                raise ConversionError(
                    f"{self.directory}: tensors {other.name!r} and {tensor.name!r} are the same "
                    f"part of the model, {name_of(name)!r}; remove one"
                )
        self.tensors = renamed

    def check(self, sources: Iterable[Source], dropped: Mapping[str, str]) -> None:
        """Compare with what is expected: nothing missing, misshapen or left over."""
        expected = {source.name: source.shape for source in sources}
        missing = [name for name in expected if name not in self.tensors]
        if missing:
            raise ConversionError(f"{self.directory}: {_listed(missing)} missing")
        for name, shape in expected.items():
            if self.tensors[name].shape != shape:
                raise ConversionError(
                    f"{self.tensors[name].path}: tensor {self.tensors[name].name!r} has shape "
                    f"{list(self.tensors[name].shape)}, the configuration asks for {list(shape)}"
                )
        left = [
            tensor.name
            for name, tensor in self.tensors.items()
            if name not in expected and not name.startswith(tuple(dropped))
        ]
        if left:
            raise ConversionError(
                f"{self.directory}: {_listed(left)} not part of the model that {CONFIG} describes"
            )
        self._check_dtypes(expected)

    def check_repeated(self, repeated: Mapping[str, str]) -> None:
        """Refuse tensors, if they are there, that differ from those they are said to repeat."""
        for name, original in repeated.items():
            if name in self.tensors and not self._same(name, original):
                raise ConversionError(
                    f"{self.tensors[name].path}: tensor {self.tensors[name].name!r} differs from "
                    f"{self.tensors[original].name!r}, which {CONFIG} says it repeats; set "
                    f"'{TIED}' to false there to keep it, or remove the tensor"
                )

    def read(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Rows ``start:stop`` of a tensor as float32; safe in several threads."""
        import torch

        tensor = self.tensors[name]
        part = self._shards[tensor.path].get_slice(tensor.name)[start:stop]
        result: FloatArray = part.to(torch.float32).numpy()
        return result

    def _same(self, one: str, other: str) -> bool:
        shape = self.tensors[one].shape
        step = max(1, _PIECE * shape[0] // prod(shape))
        return shape == self.tensors[other].shape and all(
            np.array_equal(self.read(one, row, row + step), self.read(other, row, row + step))
            for row in range(0, shape[0], step)
        )

    def _scan(self) -> Iterator[StoredTensor]:
        from safetensors import SafetensorError, safe_open

        paths = self._shard_paths()
        for path in paths:
            try:
                shard: Any = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ConversionError(f"{path}: not a complete safetensors file: {error}") from None
            self._shards[path] = shard
            for name in shard.keys():  # noqa: SIM118 - no mapping
                part = shard.get_slice(name)
                yield StoredTensor(name, path, tuple(part.get_shape()), part.get_dtype())

    def _shard_paths(self) -> list[Path]:
        """The files the index names, or all there are."""
        index = self.directory / "model.safetensors.index.json"
        if index.is_file():
            names = set(read_json(index).get("weight_map", {}).values())
            absent = sorted(name for name in names if not (self.directory / name).is_file())
            if absent:
                raise ConversionError(
                    f"{index}: {_listed(absent, 'file')} missing from {self.directory}; "
                    "download the model in full"
                )
            return sorted(self.directory / name for name in names)
        paths = sorted(self.directory.glob("*.safetensors"))
        if not paths:
            raise ConversionError(
                f"{self.directory} holds no *.safetensors; weights in other formats must be saved "
                "as safetensors first"
            )
        return paths

    def _check_dtypes(self, names: Iterable[str]) -> None:
        for name in names:
            tensor = self.tensors[name]
            if tensor.dtype not in _FLOATS:
                raise ConversionError(
                    f"{tensor.path}: tensor {tensor.name!r} is stored as {tensor.dtype}; convert "
                    "from a checkpoint in float32, float16 or bfloat16"
                )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises :class:`ConversionError`."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConversionError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConversionError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConversionError(f"{path}: holds a {type(values).__name__}, expected an object")
    return values


def _short(value: object) -> str:
    """A value in a message, in a line of its own length whatever it holds."""
    return reprlib.repr(value)


def _listed(names: Sequence[str], kind: str = "tensor") -> str:
    """``tensor 'a' is`` or ``tensors 'a', 'b' and 3 more are``."""
    shown = ", ".join(repr(name) for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{kind} {shown} is" if len(names) == 1 else f"{kind}s {shown}{more} are"
