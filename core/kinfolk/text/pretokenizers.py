"""Cutting text into the pieces inside which merging happens, by the id a file states.

An id belongs to the family that claims it; the few below were never any one family's own.
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
"""The symbols of byte-level vocabularies."""
_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION: Final = r"[\p{P}\$\+<=>\^~\|]+"

SENTENCEPIECE: Final = PreTokenizer("llama", (), symbols="sentencepiece", add_bos=True)
"""Such a file says by itself how its text is read; only the model's own family can vary that."""

# Of names for one and the same way, conversion writes the first.
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


Stated = Mapping[str, tuple[PreTokenizer, ...]]
"""Pre-tokenizers by the name of the family that states them."""


class Claims(Protocol):
    """The part of a family that is asked here."""

    @property
    def name(self) -> str: ...

    def pretokenizers(self) -> tuple[PreTokenizer, ...]: ...


def find(
    name: str,
    families: Iterable[Claims],
    *,
    own: str = "",
    path: Path | None = None,
    byte_level: bool = True,
) -> PreTokenizer:
    """The pre-tokenizer called ``name``: the model's ``own`` family first, then any, then ours.

    Others are asked only if the own family has none, and left out with a warning if they fail. Of a
    file that is not ``byte_level``, ``name`` is that of the model of its vocabulary.
    Raises :class:`UnsupportedModelError` if nobody claims the name, and :class:`PluginError` if
    several families of which none is the model's own define it differently.
    """
    families = tuple(families)
    stated = {family.name: family.pretokenizers() for family in families if family.name == own}
    claims = _claims(name, stated, byte_level)
    if not claims and not byte_level and name == SENTENCEPIECE.name:
        return SENTENCEPIECE
    if not claims:
        others = (family for family in families if family.name != own)
        answers = ask_each(others, lambda family: family.pretokenizers())
        stated |= {family.name: found for family, found in answers}
        claims = _claims(name, stated, byte_level)
    if len(set(claims.values())) > 1:
        raise PluginError(
            f"pre-tokenizer {name!r} is defined differently by the families "
            f"{', '.join(sorted(claims))}; choose one with --model-family or remove one"
        )
    if claims:
        return next(iter(claims.values()))
    where = "" if path is None else f"{path}: "
    if not byte_level:
        raise UnsupportedModelError(
            f"{where}key 'tokenizer.ggml.model' is {name!r}, a vocabulary that no installed family "
            "reads (of itself kinfolk reads the byte-level 'gpt2' and 'llama', SentencePiece's); "
            "install a plugin that does"
        )
    if name in GENERIC:
        return GENERIC[name]
    raise UnsupportedModelError(where + _unclaimed(name, stated))


def _claims(name: str, stated: Stated, byte_level: bool) -> dict[str, PreTokenizer]:
    """What families state under the name, by family."""
    return {
        holder: pre
        for holder, found in stated.items()
        for pre in found
        if pre.name == name and (pre.symbols == BYTES) == byte_level
    }


def _unclaimed(name: str, stated: Stated) -> str:
    known = [
        f"{holder}: {', '.join(sorted(pre.name for pre in found))}"
        for holder, found in sorted(stated.items())
        if found
    ]
    known.append(f"built in: {', '.join(sorted(GENERIC))}")
    return (
        f"no installed family claims the pre-tokenizer {name!r} of tokenizer.ggml.pre "
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
