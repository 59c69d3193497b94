"""The ``general.*`` keys: what a model is called, who made it, how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kinfolk.gguf.values import Value

QUANTIZATION_VERSION: Final = 2
"""Of the block formats, as all current readers expect it."""

_TYPES: Final = {"UINT32": "u32", "INT32": "i32", "FLOAT32": "f32", "STRING": "string"}


def general_keys(
    architecture: str, directory: Path, parameters: int, name: str = ""
) -> Mapping[str, object]:
    """Keys in file order, found by gguf-py in the model card, the settings and the path.

    ``parameters`` counts the numbers of all tensors; ``name`` replaces the name that was found.
    """
    from gguf import GGUFWriter, Metadata
    from gguf.utility import size_label

    found = Metadata.load(None, directory.resolve(), None, parameters)
    found.name = name or found.name or directory.resolve().name
    found.size_label = found.size_label or size_label(parameters, parameters, 0, 0)
    # The writer is never given a file; it knows the key and the type of every item.
    writer = GGUFWriter(None, architecture)
    found.set_gguf_meta_model(writer)
    keys: dict[str, object] = {"general.architecture": architecture, "general.type": "model"}
    for key, value in writer.kv_data[0].items():
        keys[key] = _plain(value.value, value.type.name)
    return keys


def _plain(content: object, kind: str) -> object:
    """A typed value; arrays here are lists of texts."""
    return Value(_TYPES[kind], content) if kind in _TYPES else content  # type: ignore[arg-type]
