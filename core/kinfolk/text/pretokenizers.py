"""Pre-tokenizers by the id in a model file: those of families, and generic ones.

Families declare their own ids; the generic ones below belong to no family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from kinfolk.door import ask_each
from kinfolk.errors import PluginError, UnsupportedModelError
from kinfolk.text.formats import PreTokenizer
from kinfolk.text.patterns import words

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import pre_tokenizers

DEFAULT: Final = "default"
BYTES: Final = "bytes"
"""Name of the symbols of byte-level vocabularies."""
_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION: Final = r"[\p{P}\$\+<=>\^~\|]+"

SENTENCEPIECE: Final = PreTokenizer("llama", (), symbols="sentencepiece", add_bos=True)
"""Default for SentencePiece files; only the model's own family can override it."""

# Several names may share a definition: conversion writes the first of them.
GENERIC: Final[Mapping[str, PreTokenizer]] = {
    pre.name: pre
    for pre in (
        PreTokenizer(DEFAULT, (_PUNCTUATION, _WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
        PreTokenizer("gpt-2", (_WORDS,)),
        *(
            PreTokenizer(name, (words(digits=r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
            for name in ("llama-bpe", "llama3", "llama-v3")
        ),
        *(
            PreTokenizer(name, (r"\p{N}", _WORDS))
            for name in ("starcoder", "smollm", "codeshell", "refact")
        ),
    )
}


ByFamily = Mapping[str, tuple[PreTokenizer, ...]]
"""Family name -> its pre-tokenizers."""


class PreTokenizerProvider(Protocol):
    """The part of a family that declares pre-tokenizers."""

    @property
    def name(self) -> str: ...

    def pretokenizers(self) -> tuple[PreTokenizer, ...]: ...


def find_pretokenizer(
    name: str,
    families: Iterable[PreTokenizerProvider],
    *,
    own: str = "",
    path: Path | None = None,
    byte_level: bool = True,
) -> PreTokenizer:
    """The pre-tokenizer ``name``: of the family ``own``, else of another family, else a generic
    one.

    Other families are queried only if ``own`` has none; one that fails is skipped with a warning.
    If not ``byte_level``, ``name`` is the value of ``tokenizer.ggml.model``. Raises
    :class:`UnsupportedModelError` if no family has the name, :class:`PluginError` if several other
    families define it differently.
    """
    families = tuple(families)
    declared = {family.name: family.pretokenizers() for family in families if family.name == own}
    matches = _matches(name, declared, byte_level)
    if not matches and not byte_level and name == SENTENCEPIECE.name:
        return SENTENCEPIECE
    if not matches:
        others = (family for family in families if family.name != own)
        answers = ask_each(others, lambda family: family.pretokenizers())
        declared |= {family.name: pretokenizers for family, pretokenizers in answers}
        matches = _matches(name, declared, byte_level)
    if len(set(matches.values())) > 1:
        raise PluginError(
            f"pre-tokenizer {name!r} is defined differently by the families "
            f"{', '.join(sorted(matches))}; choose one with --model-family or remove one"
        )
    if matches:
        return next(iter(matches.values()))
    where = "" if path is None else f"{path}: "
    if not byte_level:
        raise UnsupportedModelError(
            f"{where}key 'tokenizer.ggml.model' is {name!r}, a kind of vocabulary that no "
            "installed family reads (built in: byte-level 'gpt2' and SentencePiece 'llama'); "
            "install a plugin that reads it"
        )
    if name in GENERIC:
        return GENERIC[name]
    raise UnsupportedModelError(where + _unknown(name, declared))


def _matches(name: str, declared: ByFamily, byte_level: bool) -> dict[str, PreTokenizer]:
    """Family name -> its pre-tokenizer called ``name``."""
    return {
        family: pre
        for family, pretokenizers in declared.items()
        for pre in pretokenizers
        if pre.name == name and (pre.symbols == BYTES) == byte_level
    }


def _unknown(name: str, declared: ByFamily) -> str:
    known = [
        f"{family}: {', '.join(sorted(pre.name for pre in pretokenizers))}"
        for family, pretokenizers in sorted(declared.items())
        if pretokenizers
    ]
    known.append(f"built in: {', '.join(sorted(GENERIC))}")
    return (
        f"no installed family claims the pre-tokenizer {name!r} of tokenizer.ggml.pre "
        f"(known: {'; '.join(known)}); install the plugin of the model's family"
    )


def split_steps(pre: PreTokenizer) -> list[pre_tokenizers.Split]:
    """The patterns as steps of the ``tokenizers`` library. Raises :class:`PluginError` for an
    invalid regular expression."""
    from tokenizers import Regex, pre_tokenizers

    steps = []
    for pattern in pre.patterns:
        try:
            steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
        except Exception as error:  # the library raises nothing narrower
            raise PluginError(
                f"pre-tokenizer {pre.name!r}: {pattern!r} is not a regular expression: {error}"
            ) from error
    return steps
