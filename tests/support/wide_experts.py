"""Reference cases whose experts are wide enough for planes: each has its channels twice."""

from __future__ import annotations

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


def write_wide_experts(case: Path, target: Path, kind: str = "Q8_0") -> Path:
    """Write the model of a case with twice as many channels an expert, in the format ``kind``."""
    formats = QuantFormats()
    format, stored = formats.named(kind), {}
    with GGUFFile.open(case) as file:
        for name, info in file.inventory.items():
            raw, stored_as = file.inventory.bytes(name), formats.of_type(info.ggml_type)
            shape = info.shape
            if name.endswith("_exps.weight"):
                numbers = QuantTensor.from_bytes(raw, stored_as, shape).dequantize().numpy()
                numbers = _twice(name, numbers)
                raw = quantize(numbers, GGMLQuantizationType[format.name])
                shape, stored_as = numbers.shape, format
            stored[name] = shape, stored_as.ggml_type, np.ascontiguousarray(raw)
        metadata = {key: file.metadata.value(key) for key in file.metadata}
    (key,) = (key for key in metadata if key.endswith(f".{CHANNELS}"))
    metadata[key] = replace(metadata[key], content=2 * metadata[key].content)
    tensors = [OutputTensor(n, s, kind, raw.nbytes) for n, (s, kind, raw) in stored.items()]
    with GGUFOutput(target, metadata, tensors) as output:
        for name, (_, _, raw) in stored.items():
            output.write(name, raw.tobytes())
    return target


def _twice(name: str, numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Matrices [experts, rows, columns] of an expert with its channels twice, half as large."""
    if "down" in name:
        return np.concatenate([numbers, numbers / 2], 2)
    parts = np.split(numbers, 2, 1) if "gate_up" in name else [numbers]
    return np.concatenate([np.concatenate([part, part], 1) for part in parts], 1)
