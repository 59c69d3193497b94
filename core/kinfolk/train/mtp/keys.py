"""The keys of a model's file when a block is appended to its layers. Torch-free."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kinfolk.gguf.file import SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.reader import ALIGNMENT_KEY
from kinfolk.gguf.values import Value
from kinfolk.spec.mtp.prepare import BLOCK_COUNT

_PER_LAYER: Final = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.recurrent_layers",
    "feed_forward_length",
    "expert_feed_forward_length",
)
"""Keys with one entry a layer in some files: llama.cpp reads a number or an array."""
_OF_THE_CONTAINER: Final = (SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS, ALIGNMENT_KEY)
"""How the target's tensors are laid out; the new file is one part with the usual alignment."""


def with_block(meta: Metadata, layers: int, like: int) -> dict[str, Value]:
    """The keys of a file of ``layers`` layers with a block behind them, which is like the layer
    ``like``."""
    keys = {key: meta.value(key) for key in meta if key not in _OF_THE_CONTAINER}
    for name in _PER_LAYER:
        key = meta.arch_key(name)
        if key in keys and keys[key].is_array and len(keys[key]) == layers:
            content: Any = keys[key].content
            array = np.asarray(content)
            keys[key] = Value(keys[key].type, np.append(array, array[like]), True)
    count = meta.arch_key("block_count")
    keys[count] = Value(keys[count].type, layers + 1)
    keys[meta.arch_key(BLOCK_COUNT)] = Value("u32", 1)
    return keys
