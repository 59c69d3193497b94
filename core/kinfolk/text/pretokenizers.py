"""Cutting text into the pieces inside which merging happens, by the id a file states.

An id belongs to the family that claims it; the few below were never any one family's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from kinfolk.errors import PluginError, UnsupportedModelError
from kinfolk.text.formats import PreTokenizer
from kinfolk.text.patterns import words

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import pre_tokenizers

DEFAULT: Final = "default"
_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION: Final = r"[\p{P}\$\+<=>\^~\|]+"

GENERIC: Final[Mapping[str, PreTokenizer]] = {
    pre.name: pre
    for pre in (
        PreTokenizer(DEFAULT, (_PUNCTUATION, _WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
        PreTokenizer("gpt-2", (_WORDS,)),
        *(
            PreTokenizer(name, (words(digits=r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
            for name in ("llama3", "llama-v3", "llama-bpe")
        ),
        *(
            PreTokenizer(name, (r"\p{N}", _WORDS))
            for name in ("starcoder", "smollm", "codeshell", "refact")
        ),
    )
}


class Claims(Protocol):
    """The part of a family that is asked here."""

    @property
    def name(self) -> str: ...

    def pretokenizers(self) -> tuple[PreTokenizer, ...]: ...


def find(
    name: str, families: Iterable[Claims], *, own: str = "", path: Path | None = None
) -> PreTokenizer:
    """The pre-tokenizer called ``name``: the model's ``own`` family first, then any, then ours.

    Raises :class:`UnsupportedModelError` if nobody claims the name, and :class:`PluginError` if
    several families of which none is the model's own define it differently.
    """
    families = tuple(families)
    claims = {
        family.name: pre
        for family in families
        for pre in family.pretokenizers()
        if pre.name == name
    }
    if own in claims:
        return claims[own]
    if len(set(claims.values())) > 1:
        raise PluginError(
            f"pre-tokenizer {name!r} is defined differently by the families "
            f"{', '.join(sorted(claims))}; choose one with --model-family or remove one"
        )
    if claims:
        return next(iter(claims.values()))
    if name in GENERIC:
        return GENERIC[name]
    raise UnsupportedModelError(_unclaimed(name, families, path))


def _unclaimed(name: str, families: tuple[Claims, ...], path: Path | None) -> str:
    known = [
        f"{family.name}: {', '.join(sorted(pre.name for pre in family.pretokenizers()))}"
        for family in sorted(families, key=lambda family: family.name)
        if family.pretokenizers()
    ]
    known.append(f"built in: {', '.join(sorted(GENERIC))}")
    where = "" if path is None else f"{path}: "
    return (
        f"{where}no installed family claims the pre-tokenizer {name!r} of tokenizer.ggml.pre "
        f"(known: {'; '.join(known)}); install the plugin of the model's family"
    )


def split_steps(pre: PreTokenizer) -> list[pre_tokenizers.Split]:
    """The patterns as steps of the ``tokenizers`` library."""
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
