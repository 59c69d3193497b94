"""Writes a block's file: a copy of the model with the block's tensors behind, or these alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from kinfolk.convert.driver import encode, outtypes
from kinfolk.descriptors import QuantFormat
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.file_types import choose_types
from kinfolk.gguf.inventory import TensorInfo
from kinfolk.gguf.output import GGUFOutput, Job, OutputTensor
from kinfolk.gguf.values import ByteArray, Value
from kinfolk.quant.formats import QuantFormats
from kinfolk.spec.mtp.block import TrainedLayer
from kinfolk.train.kinds import Writing

_NAME_KEY: Final = "general.name"
_COPIED: Final = 16 << 20
"""Bytes of a tensor that are copied at a time."""


def write_block(
    target: GGUFFile,
    keys: Mapping[str, Value],
    block: Mapping[str, npt.NDArray[np.float32]],
    layer: TrainedLayer,
    writing: Writing,
    formats: QuantFormats,
) -> int:
    """Write the tensors of ``target``, byte for byte, unless the block is to stand alone, and those
    of the ``block`` in the types of the writing's mix. Returns the bytes of the file.

    Raises :class:`OutputError` or :class:`CapacityError`.
    """
    types = choose_types(
        ((name, array.shape) for name, array in block.items()),
        outtypes(formats)[writing.outtype.lower()],
        group=layer.heads // layer.kv_heads,
        blocks=formats.blocks(),
    )
    chosen = {name: formats.named(kind) for name, kind in types.items()}
    copied = {} if writing.alone else target.inventory
    layouts = [
        OutputTensor(name, info.shape, info.ggml_type, info.nbytes) for name, info in copied.items()
    ]
    layouts += [_layout(name, array.shape, chosen[name]) for name, array in block.items()]
    stated = {_NAME_KEY: writing.name} if writing.name else {}
    with GGUFOutput(
        writing.path, {**keys, **stated}, layouts, overwrite=writing.overwrite
    ) as output:
        output.run(_jobs(target, copied, block, chosen), workers=1, progress=writing.progress)
    return writing.path.stat().st_size


def _layout(name: str, shape: tuple[int, ...], format_: QuantFormat) -> OutputTensor:
    nbytes = prod(shape) // format_.block * format_.bytes
    return OutputTensor(name, shape, format_.ggml_type, nbytes)


def _jobs(
    target: GGUFFile,
    copied: Mapping[str, TensorInfo],
    block: Mapping[str, npt.NDArray[np.float32]],
    formats: Mapping[str, QuantFormat],
) -> Iterator[Job]:
    for name, info in copied.items():
        for start in range(0, info.nbytes, _COPIED):
            yield Job(name, start, partial(_stored, target, name, start))
    for name, array in block.items():
        yield Job(name, 0, partial(encode, array, formats[name]))


def _stored(target: GGUFFile, name: str, start: int) -> ByteArray:
    return target.inventory.bytes(name).reshape(-1)[start : start + _COPIED]
