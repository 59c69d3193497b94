"""Executes a family's conversion: checks everything first, then writes tensor by tensor."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kinfolk.convert.checkpoint import HFCheckpoint
from kinfolk.convert.find import DrafterConverter, find_conversion
from kinfolk.convert.general import QUANTIZATION_VERSION, ParameterCount, general_keys
from kinfolk.convert.plan import Conversion, FloatArray, TensorRecipe
from kinfolk.convert.target import target_tokenizer
from kinfolk.descriptors import Family, QuantFormat
from kinfolk.errors import (
    ConversionError,
    ModelFormatError,
    PluginError,
    UnsupportedModelError,
)
from kinfolk.gguf.file_types import MIXES, UNKNOWN_FILE_TYPE, TypeMix, choose_types
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.output import GGUFOutput, Job, OutputTensor, Progress, check_target
from kinfolk.guarded import who_is
from kinfolk.quant.codec import quantize
from kinfolk.quant.formats import QuantFormats
from kinfolk.text.vocabulary import TOKENS

if TYPE_CHECKING:
    from kinfolk.gguf.values import ByteArray

TYPE_I64: Final = 27
"""The tensor type I64."""

PIECE_VALUES: Final = 1 << 22
"""Numbers converted at a time: bounds memory and gives progress a heartbeat."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written: ``types`` counts tensors by the name of their type."""

    path: Path
    family: str
    nbytes: int
    parameters: int
    types: Mapping[str, int]


def convert(
    directory: Path,
    path: Path,
    *,
    outtype: str,
    families: Iterable[Family],
    formats: QuantFormats | None = None,
    name: str = "",
    tokenizer: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
    workers: int = 0,
) -> Converted:
    """Convert the Hugging Face model in ``directory`` to the file ``path``.

    ``outtype`` is the name of a mix (:func:`outtypes`). Without ``tokenizer`` the file holds the
    size of the vocabulary only. ``workers`` threads convert, as many as there are cores if 0.

    Raises :class:`ConversionError`, :class:`OutputError` or :class:`CapacityError`; then, as after
    an interruption, there is no file under ``path`` that was not there before.
    """
    check_target(path, overwrite)
    formats = formats or QuantFormats()
    mix = _mix(outtype, formats)
    with HFCheckpoint(directory) as checkpoint:
        family, conversion = find_conversion(checkpoint, families)
        if tokenizer:
            vocabulary = conversion.tokenizer(directory)
        else:
            size = {f"{conversion.architecture}.vocab_size": conversion.vocabulary}
            vocabulary = size | {"tokenizer.ggml.model": "none"}
        writing = _Writing(checkpoint, who_is(family), conversion, mix, formats, name)
        writing.check()
        keys = writing.keys(vocabulary)
        _check_readable(family, keys, path)
        types = writing.write(path, keys, overwrite=overwrite, progress=progress, workers=workers)
    return writing.result(family.name, path, types)


def convert_drafter(
    directory: Path,
    path: Path,
    *,
    outtype: str,
    target: Path,
    drafters: Iterable[DrafterConverter],
    families: Iterable[Family],
    formats: QuantFormats | None = None,
    name: str = "",
    overwrite: bool = False,
    progress: Progress | None = None,
    workers: int = 0,
) -> Converted:
    """Convert the drafter in ``directory``, which drafts for the model ``target``, a GGUF file or a
    Hugging Face directory. The file gets the target's tokenizer.

    Arguments and errors are those of :func:`convert`.
    """
    check_target(path, overwrite, inputs=[target])
    formats = formats or QuantFormats()
    mix = _mix(outtype, formats)
    with HFCheckpoint(directory) as checkpoint:
        drafter, conversion = find_conversion(checkpoint, drafters, "drafter")
        tokenizer = dict(target_tokenizer(target, families, formats))
        _check_vocabulary(conversion, checkpoint, tokenizer, target)
        writing = _Writing(checkpoint, drafter.who, conversion, mix, formats, name)
        writing.check()
        keys = writing.keys(tokenizer | dict(conversion.tokenizer(directory)))
        types = writing.write(path, keys, overwrite=overwrite, progress=progress, workers=workers)
    return writing.result(drafter.name, path, types)


@dataclass(frozen=True, slots=True)
class _Writing:
    """One conversion that is checked and written; ``who`` states it, in messages."""

    checkpoint: HFCheckpoint
    who: str
    conversion: Conversion
    mix: TypeMix
    formats: QuantFormats
    name: str

    def check(self) -> None:
        """Refuse tensors of the checkpoint that are missing, misshapen or left over."""
        checkpoint, conversion = self.checkpoint, self.conversion
        checkpoint.rename(conversion.source_name)
        checkpoint.check(
            (source for recipe in conversion.tensors for source in recipe.sources),
            {**conversion.dropped, **conversion.repeated},
        )
        checkpoint.check_repeated(conversion.repeated)

    @property
    def parameters(self) -> ParameterCount:
        return ParameterCount.of((recipe.name, recipe.shape) for recipe in self.conversion.tensors)

    def keys(self, tokenizer: Mapping[str, object]) -> Mapping[str, object]:
        """All keys in file order."""
        architecture, directory = self.conversion.architecture, self.checkpoint.directory
        keys = dict(general_keys(architecture, directory, self.parameters, self.name))
        for key, value in self.conversion.metadata.items():
            keys[f"{architecture}.{key}"] = value
        keys["general.file_type"] = self.mix.file_type
        keys["general.quantization_version"] = QUANTIZATION_VERSION
        return keys | dict(tokenizer)

    def write(
        self,
        path: Path,
        keys: Mapping[str, object],
        *,
        overwrite: bool,
        progress: Progress | None,
        workers: int,
    ) -> Mapping[str, int]:
        """Write the file; returns the number of tensors of each type."""
        conversion = self.conversion
        plan = _plan(conversion, self.mix, self.formats)
        layouts = [_layout(recipe, plan[recipe.name]) for recipe in conversion.tensors]
        layouts += [
            OutputTensor(name, array.shape, TYPE_I64, array.nbytes)
            for name, array in conversion.integers.items()
        ]
        with GGUFOutput(path, keys, layouts, overwrite=overwrite) as output:
            jobs = _jobs(self.who, conversion, plan, self.checkpoint)
            output.run(
                chain(jobs, _integer_jobs(conversion)),
                workers=workers or os.cpu_count() or 1,
                progress=progress,
            )
        return Counter(format_.name for format_ in plan.values())

    def result(self, name: str, path: Path, types: Mapping[str, int]) -> Converted:
        return Converted(path, name, path.stat().st_size, self.parameters.total, types)


def outtypes(formats: QuantFormats | None = None) -> Mapping[str, TypeMix]:
    """The mixes whose every type can be written, by name; a format that is in none of the core's
    is one of its own."""
    writable = {format_.name for format_ in formats or QuantFormats() if format_.quantize}
    found = {name: mix for name, mix in MIXES.items() if {mix.base, mix.output} <= writable}
    for kind in sorted(writable - {mix.base for mix in MIXES.values()}):
        found.setdefault(kind.lower(), TypeMix(kind.lower(), UNKNOWN_FILE_TYPE, kind, kind))
    return found


def _check_readable(family: Family, keys: Mapping[str, object], path: Path) -> None:
    """Refuse, before converting, metadata that the family could not read back."""
    try:
        family.read_config(Metadata.from_dict(keys, path))
    except (ModelFormatError, UnsupportedModelError) as error:
        raise ConversionError(
            f"family {family.name!r} would refuse the file it is to write, {error}; the "
            "configuration of the checkpoint holds what cannot be run"
        ) from None


def _check_vocabulary(
    conversion: Conversion, checkpoint: HFCheckpoint, tokenizer: Mapping[str, object], target: Path
) -> None:
    tokens = Metadata.from_dict(tokenizer).strings(TOKENS)
    if conversion.vocabulary and conversion.vocabulary != len(tokens):
        raise ConversionError(
            f"{checkpoint.config.path}: key 'vocab_size' is {conversion.vocabulary}, but {target} "
            f"has {len(tokens)} tokens: the drafter is for another model"
        )


# -- planning -------------------------------------------------------------------------------------


def _mix(outtype: str, formats: QuantFormats) -> TypeMix:
    possible = outtypes(formats)
    if outtype.lower() not in possible:
        raise ConversionError(f"unknown --outtype {outtype!r}; choose one of {', '.join(possible)}")
    return possible[outtype.lower()]


def _plan(conversion: Conversion, mix: TypeMix, formats: QuantFormats) -> Mapping[str, QuantFormat]:
    """The format of every tensor."""
    chosen = choose_types(
        ((recipe.name, recipe.shape) for recipe in conversion.tensors),
        mix.overridden(conversion.type_overrides),
        group=conversion.group,
        blocks=formats.blocks(),
    )
    return {name: formats.named(kind) for name, kind in chosen.items()}


def _layout(recipe: TensorRecipe, format_: QuantFormat) -> OutputTensor:
    nbytes = prod(recipe.shape) // format_.block * format_.bytes
    return OutputTensor(recipe.name, recipe.shape, format_.ggml_type, nbytes)


# -- writing --------------------------------------------------------------------------------------


def _jobs(
    who: str, conversion: Conversion, plan: Mapping[str, QuantFormat], checkpoint: HFCheckpoint
) -> Iterator[Job]:
    """A job for every piece of a tensor that can be made by itself; ``who`` says how."""
    for recipe in conversion.tensors:
        format_ = plan[recipe.name]
        rows = recipe.shape[0]
        step = rows
        if recipe.transform.rowwise:
            step = max(1, PIECE_VALUES * rows // prod(recipe.shape))
        row_bytes = prod(recipe.shape[1:]) * format_.bytes // format_.block
        if len(recipe.shape) == 1:
            step, row_bytes = rows, 0
        for start in range(0, rows, step):
            produce = partial(_produce, who, recipe, format_, checkpoint, start, start + step)
            yield Job(recipe.name, start * row_bytes, produce)


def _integer_jobs(conversion: Conversion) -> Iterator[Job]:
    for name, array in conversion.integers.items():
        data = np.ascontiguousarray(array, "<i8").view(np.uint8)
        yield Job(name, 0, partial(np.asarray, data))


def _produce(
    who: str,
    recipe: TensorRecipe,
    format_: QuantFormat,
    checkpoint: HFCheckpoint,
    start: int,
    stop: int,
) -> ByteArray:
    """Rows ``start:stop`` of the tensor in its format, a flat uint8 array."""
    numbers = recipe.transform.apply(*_read(recipe, checkpoint, start, stop))
    expected = (min(stop, recipe.shape[0]) - start, *recipe.shape[1:])
    if numbers.shape != expected:
        raise PluginError(
            f"{who}: Transform.apply of {recipe.name!r} returned {list(numbers.shape)}, the recipe "
            f"states {list(expected)}"
        )
    if not np.isfinite(numbers).all():
        row = int(np.isfinite(numbers).reshape(len(numbers), -1).all(1).argmin())
        blamed = _blamed(recipe, checkpoint, start + row)
        raise ConversionError(f"{blamed} holds numbers that are not finite")
    try:
        return encode(numbers, format_)
    except ModelFormatError as error:
        row = int(np.abs(numbers).reshape(len(numbers), -1).max(1).argmax())
        blamed = _blamed(recipe, checkpoint, start + row)
        raise ConversionError(f"{blamed} cannot be written as {format_.name}: {error}") from None


def _blamed(recipe: TensorRecipe, checkpoint: HFCheckpoint, row: int) -> str:
    """Where a row of the tensor comes from: file and name of a tensor of the checkpoint."""
    stored = checkpoint.tensors[recipe.sources[row if recipe.stacked else 0].name]
    return f"{stored.path}: tensor {stored.name!r}"


def _read(
    recipe: TensorRecipe, checkpoint: HFCheckpoint, start: int, stop: int
) -> Iterator[FloatArray]:
    """What the transform needs for rows ``start:stop`` of its result."""
    if recipe.stacked:
        yield np.stack([checkpoint.read(s.name) for s in recipe.sources[start:stop]])
        return
    for source in recipe.sources:
        if recipe.transform.rowwise:
            yield checkpoint.read(source.name, start, stop)
        else:
            yield checkpoint.read(source.name)


def encode(numbers: FloatArray, format_: QuantFormat) -> ByteArray:
    """The numbers in a format, piece by piece, as a flat uint8 array."""
    rows = numbers.reshape(-1, numbers.shape[-1])
    step = max(1, PIECE_VALUES // rows.shape[1])
    parts = [
        quantize(np.ascontiguousarray(rows[start : start + step]), format_).reshape(-1)
        for start in range(0, len(rows), step)
    ]
    return np.concatenate(parts)
