"""The tokenizer of the model that a drafter drafts for: its file gets the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kinfolk.convert.checkpoint import HFCheckpoint
from kinfolk.convert.find import find_conversion
from kinfolk.descriptors import Family
from kinfolk.errors import ConversionError
from kinfolk.gguf.file import GGUFFile
from kinfolk.quant.formats import QuantFormats
from kinfolk.text.vocabulary import TOKENS

_PREFIX: Final = "tokenizer."
_TEMPLATE: Final = "tokenizer.chat_template"


def target_tokenizer(
    target: Path, families: Iterable[Family], formats: QuantFormats
) -> Mapping[str, object]:
    """The ``tokenizer.*`` keys of a model, without chat templates.

    ``target`` is a GGUF file, or a Hugging Face directory that one of the families converts.
    Raises :class:`ConversionError`, or :class:`ModelFormatError` for a damaged file.
    """
    if target.is_dir():
        with HFCheckpoint(target) as checkpoint:
            _, conversion = find_conversion(checkpoint, families)
            keys = dict(conversion.tokenizer(target))
    elif target.is_file():
        with GGUFFile.open(target, formats.tensor_types()) as file:
            meta = file.metadata
            keys = {key: meta.value(key) for key in meta if key.startswith(_PREFIX)}
    else:
        raise ConversionError(f"--target {target}: there is no such file or directory")
    if TOKENS not in keys:
        raise ConversionError(
            f"--target {target}: the model has no vocabulary (key {TOKENS!r}), which the drafter "
            "must share"
        )
    return {key: value for key, value in keys.items() if not key.startswith(_TEMPLATE)}
