"""Writes small model files for tests, and copies of them with changes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kinfolk.convert.driver import encode
from kinfolk.descriptors import QuantFormat, ReleasedShape
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.file_types import is_matrix
from kinfolk.gguf.inventory import TensorInfo
from kinfolk.gguf.output import GGUFOutput, OutputTensor
from kinfolk.gguf.values import ByteArray, Value
from kinfolk.plans import Paged, StatePlan
from kinfolk.quant.formats import QuantFormats
from kinfolk.synth.blocks import FILLS, random_blocks
from kinfolk.synth.plan import plan_synthetic
from kinfolk.synth.write import write_synthetic

Numbers = npt.NDArray[np.float32]

_INTEGERS: Final = ("I32", "I64")


def write_f32(shape: ReleasedShape, path: Path) -> Path:
    """A file of the shape with random float32 weights."""
    write_synthetic(plan_synthetic(shape, mix="f32"), path, overwrite=True, workers=1)
    return path


def numbers_of(file: GGUFFile, name: str) -> Numbers:
    """A float32 tensor of a file, in torch order."""
    stored = file.inventory.bytes(name).reshape(-1).view("<f4")
    return stored.reshape(file.inventory[name].shape)


def can_hold(format_: QuantFormat, tensor: TensorInfo) -> bool:
    """Whether a tensor may be stored in a format: a matrix with rows of whole blocks."""
    return is_matrix(tensor.name, tensor.shape) and tensor.shape[-1] % format_.block == 0


def rewrite(
    source: GGUFFile,
    path: Path,
    *,
    matrices: QuantFormat | None = None,
    added: Mapping[str, Numbers] | None = None,
    keys: Mapping[str, Value] | None = None,
    without: Container[str] = (),
) -> Path:
    """A copy of a float32 file with matrices in another format, tensors and keys added or replaced,
    and those called ``without`` left out. Tensors of integers stay as they are.

    Matrices are random if the format has no encoder.
    """
    plain = QuantFormats().named("F32")
    kept = [each for name, each in source.inventory.items() if name not in without]
    lists = [each for each in kept if each.type_name in _INTEGERS]
    numbers = {each.name: numbers_of(source, each.name) for each in kept if each not in lists}
    numbers |= {name: array for name, array in (added or {}).items() if name not in without}
    formats = {
        name: matrices
        if matrices and name in source.inventory and can_hold(matrices, source.inventory[name])
        else plain
        for name in numbers
    }
    layouts = [
        OutputTensor(
            name,
            array.shape,
            formats[name].ggml_type,
            prod(array.shape) // formats[name].block * formats[name].bytes,
        )
        for name, array in numbers.items()
    ]
    layouts += [OutputTensor(each.name, each.shape, each.ggml_type, each.nbytes) for each in lists]
    stated = {key: source.metadata.value(key) for key in source.metadata} | dict(keys or {})
    stated = {key: value for key, value in stated.items() if key not in without}
    with GGUFOutput(path, stated, layouts, overwrite=True) as output:
        for name, array in numbers.items():
            output.write(name, _stored(array, formats[name]))
        for each in lists:
            output.write(each.name, source.inventory.bytes(each.name).reshape(-1))
    return path


def turned_heads(file: GGUFFile, plan: StatePlan) -> dict[str, Numbers]:
    """Query and key weights of every layer, with rows 2i and 2i + 1 of a head rotated by an angle
    that depends on i.

    Only rows that the rotary embedding rotates are changed: the first ones of a head.
    """
    rotary = file.metadata.arch_key("rope.dimension_count")
    turned = {}
    for index, layer in enumerate(plan.layers):
        if not isinstance(layer, Paged):
            continue
        (dim,) = (section.dim for section in layer.sections if section.name == "k")
        dims = file.metadata.integer(rotary, default=dim)
        for part in ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias"):
            if (name := f"blk.{index}.{part}") in file.inventory:
                rows = numbers_of(file, name)
                turned[name] = _turned(rows.reshape(-1, dim, *rows.shape[1:]), dims, rows.shape)
    return turned


def _turned(heads: Numbers, dims: int, shape: tuple[int, ...]) -> Numbers:
    angle = np.arange(1, dims // 2 + 1, dtype=np.float32)
    angle = angle.reshape(-1, *(1,) * (heads.ndim - 2))
    even, odd = heads[:, 0:dims:2], heads[:, 1:dims:2]
    turned = heads.copy()
    turned[:, 0:dims:2] = np.cos(angle) * even - np.sin(angle) * odd
    turned[:, 1:dims:2] = np.sin(angle) * even + np.cos(angle) * odd
    return turned.reshape(shape)


def dequantised(source: Path, path: Path) -> Path:
    """A float32 copy of a file, dequantised by gguf-py."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    numbers = {
        str(tensor.name): np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        for tensor in GGUFReader(source).tensors
    }
    layouts = [OutputTensor(name, array.shape, 0, array.nbytes) for name, array in numbers.items()]
    with GGUFFile.open(source) as file:
        keys = {key: file.metadata.value(key) for key in file.metadata}
        with GGUFOutput(path, keys, layouts, overwrite=True) as output:
            for name, array in numbers.items():
                output.write(name, np.ascontiguousarray(array).view(np.uint8).reshape(-1))
    return path


def can_write(format_: QuantFormat) -> bool:
    return bool(format_.quantize) or format_.name in FILLS


def _stored(array: Numbers, format_: QuantFormat) -> ByteArray:
    if format_.quantize:
        return encode(array, format_)
    blocks = array.size // format_.block
    deviation = float(array.shape[-1] ** -0.5)
    return random_blocks(format_.name, blocks, deviation, np.random.SFC64(blocks))
