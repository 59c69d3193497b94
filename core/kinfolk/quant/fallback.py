"""Dequantisers for the types that only gguf-py reads: ``fallback:IQ2_XXS`` and the like.

The names are not written down here, so that whatever the installed gguf-py learns can be used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Dequantizer = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]


def can_read(name: str, size: int) -> bool:
    """Whether gguf-py dequantises the type ``name``, with blocks of ``size`` bytes."""
    try:
        dequantizer(name)(np.zeros((1, size), np.uint8))
    except (AttributeError, NotImplementedError):
        return False
    return True


def dequantizer(name: str) -> Dequantizer:
    """gguf-py's dequantiser of the type. Raises ``AttributeError`` for a name it lacks."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = getattr(GGMLQuantizationType, name)

    def run(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        # Like our own dequantisers, damaged scales give infinities without a word.
        with np.errstate(all="ignore"):
            return np.asarray(dequantize(np.ascontiguousarray(data), kind), np.float32)

    return run


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return dequantizer(name)
