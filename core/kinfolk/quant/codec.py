"""Quantise and dequantise with the functions that a ``QuantFormat`` names.

Results of plugins' functions are checked for shape and dtype.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kinfolk.descriptors import QuantFormat, resolve
from kinfolk.door import Misfit, ask

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float32]


def dequantize(data: Bytes, format_: QuantFormat) -> Numbers:
    """uint8 [..., n * bytes] -> float32 [..., n * block]. :class:`PluginError` names a format of a
    plugin that fails or gives anything else."""
    shape = (*data.shape[:-1], data.shape[-1] // format_.bytes * format_.block)
    misfit = partial(_misfit, np.dtype(np.float32), shape)
    numbers: Numbers = _run(format_, format_.dequantize, data, misfit)
    return numbers


def quantize(numbers: Numbers, format_: QuantFormat) -> Bytes:
    """float32 [..., n * block] -> uint8 [..., n * bytes]. Raises as :func:`dequantize` does."""
    shape = (*numbers.shape[:-1], numbers.shape[-1] // format_.block * format_.bytes)
    misfit = partial(_misfit, np.dtype(np.uint8), shape)
    data: Bytes = _run(format_, format_.quantize, numbers, misfit)
    return data


def _run(format_: QuantFormat, reference: str, argument: object, misfit: Misfit) -> Any:
    if not format_.source:  # what fails in the core is no plugin's fault
        return resolve(reference)(argument)
    who = f"quant format {format_.name!r} of {format_.source}"
    return ask(who, reference, lambda: resolve(reference)(argument), misfit)


def _misfit(dtype: np.dtype[Any], shape: tuple[int, ...], value: object) -> str:
    if not isinstance(value, np.ndarray):
        return "is no numpy array"
    if value.dtype == dtype and value.shape == shape:
        return ""
    return f"is {value.dtype} {list(value.shape)}; it must be {dtype} {list(shape)}"
