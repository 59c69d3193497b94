"""Model files of reference cases whose experts are stored in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, OutputTensor
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor

CHANNELS = "expert_feed_forward_length"

Numbers = npt.NDArray[np.float32]
Change = Callable[[str, Numbers], tuple[Numbers, str]]
"""Of the name of an experts' tensor and its numbers [experts, rows, columns]: those to be stored,
and their format."""


def write_experts(case: Path, target: Path, change: Change, channels: int = 1) -> Path:
    """Write the model of a case with changed experts, which have ``channels`` times as many
    channels."""
    formats, stored = QuantFormats(), {}
    with GGUFFile.open(case) as file:
        for name, info in file.inventory.items():
            raw, kind = file.inventory.bytes(name), formats.of_type(info.ggml_type)
            shape = info.shape
            if name.endswith("_exps.weight"):
                numbers = QuantTensor.from_bytes(raw, kind, shape).dequantize().numpy()
                numbers, format = change(name, numbers)
                raw = quantize(numbers, GGMLQuantizationType[format])
                shape, kind = numbers.shape, formats.named(format)
            stored[name] = shape, kind.ggml_type, np.ascontiguousarray(raw)
        metadata = {key: file.metadata.value(key) for key in file.metadata}
    (key,) = (key for key in metadata if key.endswith(f".{CHANNELS}"))
    metadata[key] = replace(metadata[key], content=channels * metadata[key].content)
    tensors = [OutputTensor(n, s, kind, raw.nbytes) for n, (s, kind, raw) in stored.items()]
    with GGUFOutput(target, metadata, tensors) as output:
        for name, (_, _, raw) in stored.items():
            output.write(name, raw.tobytes())
    return target


def write_wide_experts(case: Path, target: Path) -> Path:
    """Write the model of a case with twice as many channels an expert, enough for planes."""
    return write_experts(case, target, lambda name, numbers: (_twice(name, numbers), "Q8_0"), 2)


def _twice(name: str, numbers: Numbers) -> Numbers:
    """The matrices of an expert with its channels twice, the second time half as large."""
    if "down" in name:
        return np.concatenate([numbers, numbers / 2], 2)
    parts = np.split(numbers, 2, 1) if "gate_up" in name else [numbers]
    return np.concatenate([np.concatenate([part, part], 1) for part in parts], 1)
