"""The ``general.*`` keys: what a model is called, who made it, how large it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from kinfolk.errors import ConversionError
from kinfolk.gguf.values import Value

QUANTIZATION_VERSION: Final = 2
"""Of the block formats, as all current readers expect it."""

_TYPES: Final = {"UINT32": "u32", "INT32": "i32", "FLOAT32": "f32", "STRING": "string"}


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Numbers in a model: all, those outside of experts, and those of one expert of every layer."""

    total: int
    shared: int
    expert: int
    experts: int

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, tuple[int, ...]]]) -> ParameterCount:
        """From names and shapes; stacks of experts are known by ``_exps`` in their names."""
        shared = total = expert = experts = 0
        for name, shape in tensors:
            size = prod(shape)
            total += size
            if "_exps." in name:
                experts = max(experts, shape[0])
                expert += size // shape[0]
            else:
                shared += size
        return cls(total, shared, expert, experts)


def general_keys(
    architecture: str, directory: Path, parameters: ParameterCount, name: str = ""
) -> Mapping[str, object]:
    """Keys in file order, found by gguf-py in the model card, the settings and the path.

    ``name`` replaces the name that was found.
    Raises :class:`ConversionError` if the model card or the settings are in disorder.
    """
    directory = directory.resolve()
    try:
        stated = _stated(architecture, directory, parameters, name)
    except Exception as error:  # gguf-py raises any exception for values of unexpected types
        raise ConversionError(
            f"{directory}: the head of README.md or generation_config.json cannot be used: "
            f"{' '.join(str(error).split())}; correct or remove them"
        ) from error
    return {"general.architecture": architecture, "general.type": "model", **stated}


def _stated(
    architecture: str, directory: Path, parameters: ParameterCount, name: str
) -> Mapping[str, object]:
    from gguf import GGUFWriter, Metadata
    from gguf.utility import size_label

    found = Metadata.load(None, directory, None, parameters.total)
    found.name = name or found.name or directory.name
    found.size_label = found.size_label or size_label(
        parameters.total, parameters.shared, parameters.expert, parameters.experts
    )
    # The writer is never given a file; it knows the key and the type of every item.
    writer = GGUFWriter(None, architecture)
    found.set_gguf_meta_model(writer)
    return {key: _plain(value.value, value.type.name) for key, value in writer.kv_data[0].items()}


def _plain(content: Any, kind: str) -> object:
    """A typed value; arrays here are lists of texts."""
    if kind not in _TYPES:
        return content
    if kind == "FLOAT32":
        content = float(content)
    return Value(_TYPES[kind], content)
