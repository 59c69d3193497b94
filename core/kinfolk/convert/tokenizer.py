"""From ``tokenizer.json`` and its companions to the ``tokenizer.*`` keys of a model file.

Two kinds of byte-pair vocabularies: byte-level, ``tokenizer.ggml.model`` = ``gpt2``, and
character-level, whose model has a name of its own. How text is cut before merging has no place in
the file except for an id, so a tokenizer that cuts in a way no installed family knows is refused.
Text is not normalised at run time; a normaliser other than the harmless NFC is refused too. Other
properties that have no place in the file are named in a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from kinfolk.convert.plan import TokenizerReader
from kinfolk.convert.tokenizer_files import TOKEN_ROLES, TokenizerFiles
from kinfolk.text.character_level import SPACE, byte_token
from kinfolk.text.formats import PreTokenizer
from kinfolk.text.vocabulary import ADD_BOS, MERGES, SCORES, TOKEN_TYPE, TOKENS, TokenType

log = logging.getLogger(__name__)

_LOOKS_SPECIAL: Final = re.compile(r"<\|.*\|>", re.DOTALL)
_IGNORES_CASE: Final = re.compile(r"\(\?i:([^()]*)\)")
_NO_SCORE: Final = -1000.0
"""The score in files whose tokens are merged by rank."""


def byte_level(
    vocabulary: int, pretokenizers: Iterable[PreTokenizer], *, names_turn_end: bool = False
) -> TokenizerReader:
    """Reads a byte-level vocabulary, padded to ``vocabulary`` entries.

    ``pretokenizers`` are the ways to cut text that the family knows. ``names_turn_end``: of several
    ends the configuration lists, the one that does not end a text ends a turn; it gets a key, and
    is a control token whatever the vocabulary says.
    """
    known = tuple(pretokenizers)

    def read(directory: Path) -> Mapping[str, object]:
        files = TokenizerFiles.load(directory)
        _check_model(files, byte_fallback=False)
        pre = _pretokenizer(files, known)
        _warn_of_lost(files, pre)
        tokens, types = files.tokens(vocabulary, _byte_level_type)
        ids = dict(zip(tokens, range(vocabulary), strict=True))
        specials = dict(files.specials(ids))
        turn_end = files.turn_end(specials, vocabulary) if names_turn_end else None
        if turn_end is not None:
            types[turn_end] = TokenType.CONTROL
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre.name,
            TOKENS: tokens,
            TOKEN_TYPE: np.array(types, np.int32),
            MERGES: files.merges(),
            **_role_keys(specials, TOKEN_ROLES),
            **({} if turn_end is None else {"tokenizer.ggml.eot_token_id": turn_end}),
            ADD_BOS: files.adds_bos(specials.get("bos")),
            **dict(files.templates()),
        }

    return read


def character_level(
    vocabulary: int, pre: PreTokenizer, visible: Collection[str] = ()
) -> TokenizerReader:
    """Reads a character-level vocabulary with a token for each byte, padded to ``vocabulary``.

    ``pre`` names the model; ``visible`` are special tokens whose text belongs to answers.
    """
    roles = {**TOKEN_ROLES, "mask": "mask"}

    def read(directory: Path) -> Mapping[str, object]:
        files = TokenizerFiles.load(directory)
        _check_model(files, byte_fallback=True)
        _check_characters(files, pre)
        _warn_of_lost(files, pre)
        plain = files.section("model").get("vocab", {})

        def added_type(added: Mapping[str, Any]) -> TokenType:
            if added["content"] in visible:
                return TokenType.USER_DEFINED
            if added.get("special"):
                return TokenType.CONTROL
            return TokenType.NORMAL if added["content"] in plain else TokenType.USER_DEFINED

        tokens, types = files.tokens(vocabulary, added_type)
        ids = dict(zip(tokens, range(vocabulary), strict=True))
        for token in (ids[text] for text in map(byte_token, range(256)) if text in ids):
            types[token] = TokenType.BYTE
        specials = dict(files.specials(ids, roles))
        for token in specials.values():
            types[token] = TokenType.CONTROL
        suppressed = np.array(files.suppressed(), np.int32)
        return {
            "tokenizer.ggml.model": pre.name,
            TOKENS: tokens,
            SCORES: np.full(vocabulary, _NO_SCORE, np.float32),
            TOKEN_TYPE: np.array(types, np.int32),
            MERGES: files.merges(),
            **_role_keys(specials, roles),
            "tokenizer.ggml.add_space_prefix": False,
            ADD_BOS: pre.needs_bos or files.adds_bos(specials.get("bos")),
            **({"tokenizer.ggml.suppress_tokens": suppressed} if suppressed.size else {}),
            **dict(files.templates()),
        }

    return read


def _role_keys(specials: Mapping[str, int], roles: Mapping[str, str]) -> dict[str, object]:
    return {
        f"tokenizer.ggml.{name}_token_id": specials[role]
        for role, name in roles.items()
        if role in specials
    }


def _check_model(files: TokenizerFiles, *, byte_fallback: bool) -> None:
    model = files.section("model")
    if model.get("type") != "BPE" or bool(model.get("byte_fallback")) != byte_fallback:
        expected = "BPE over characters with bytes for the rest" if byte_fallback else (
            "byte-level BPE"
        )  # fmt: skip
        raise files.fail(
            f"the vocabulary is of type {model.get('type')!r}; only {expected} can be converted"
        )


def _warn_of_lost(files: TokenizerFiles, pre: PreTokenizer) -> None:
    """Name what the file has no key for and ``pre`` does not imply: texts may get other ids."""
    lost = []
    model = files.section("model")
    if bool(model.get("ignore_merges")) != pre.ignore_merges:
        lost.append(f"'ignore_merges' is {not pre.ignore_merges}")
    if model.get("dropout"):
        lost.append(f"'dropout' is {model['dropout']}")
    for flag in ("lstrip", "rstrip", "single_word"):
        added = files.json.get("added_tokens", [])
        having = [token["content"] for token in added if token.get(flag)]
        if having:
            lost.append(f"{flag!r} of {', '.join(map(repr, having[:3]))}")
    if lost:
        log.warning(
            "%s: a model file cannot say %s; texts may get other tokens than there",
            files.path,
            ", ".join(lost),
        )


def _byte_level_type(added: Mapping[str, Any]) -> TokenType:
    if added.get("special") or _LOOKS_SPECIAL.fullmatch(added["content"]):
        return TokenType.CONTROL
    return TokenType.USER_DEFINED


# -- cutting: characters ---------------------------------------------------------------------------


def _check_characters(files: TokenizerFiles, pre: PreTokenizer) -> None:
    """Refuse normalisers but the replacement of spaces, and pre-tokenizers that cut elsewhere."""
    normalizer = files.json.get("normalizer") or {}
    if normalizer.get("pattern") != {"String": " "} or normalizer.get("content") != SPACE:
        raise files.fail(
            f"normaliser {normalizer.get('type')!r} cannot be converted; the only one known "
            f"replaces spaces by {SPACE!r}"
        )
    step = files.json.get("pre_tokenizer")
    patterns = [{"String": " "}, *({"Regex": pattern} for pattern in pre.patterns)]
    if step is not None and not (step.get("type") == "Split" and step.get("pattern") in patterns):
        raise files.fail(f"pre-tokenizer {step.get('type')!r} cannot be converted")


# -- cutting: bytes --------------------------------------------------------------------------------


def _pretokenizer(files: TokenizerFiles, known: tuple[PreTokenizer, ...]) -> PreTokenizer:
    """The way this tokenizer cuts text."""
    normalizer = files.json.get("normalizer")
    if normalizer is not None and normalizer.get("type") != "NFC":
        raise files.fail(f"normaliser {normalizer.get('type')!r} cannot be converted")
    patterns = tuple(_patterns(files))
    for pre in known:
        if pre.patterns == patterns:
            return pre
    names = ", ".join(repr(pre.name) for pre in known) or "none"
    raise files.fail(
        f"it cuts text by {' then '.join(patterns)!s}, which is none of the ways the model's "
        f"family knows ({names}); the plugin of the family must learn it first"
    )


def _patterns(files: TokenizerFiles) -> Iterator[str]:
    """The regular expressions in order; the last step must spell bytes as letters."""
    pre = files.section("pre_tokenizer")
    steps = pre.get("pretokenizers", []) if pre.get("type") == "Sequence" else [pre]
    last = steps[-1] if steps else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        raise files.fail(
            "its pre-tokenizer does not end in a ByteLevel step without prefix space, so the "
            "vocabulary is not a byte-level one"
        )
    for step in steps[:-1]:
        pattern = step.get("pattern", {}).get("Regex")
        if step.get("type") != "Split" or pattern is None or step.get("invert"):
            raise files.fail(f"pre-tokenizer step {step.get('type')!r} cannot be converted")
        if step.get("behavior") != "Isolated":
            raise files.fail(f"a split of behaviour {step['behavior']!r} cannot be converted")
        yield spelled_out(pattern)
    if last.get("use_regex"):
        yield GPT2_PATTERN


GPT2_PATTERN: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What a ``ByteLevel`` step cuts by when it is asked to cut."""


def spelled_out(pattern: str) -> str:
    """The pattern with case-insensitive groups of ASCII letters spelled out, ``s`` -> ``[sS]``.

    Both spellings are in use for one and the same rule, and must compare equal.
    """

    def both_cases(match: re.Match[str]) -> str:
        letters = re.sub(
            r"[a-zA-Z]", lambda letter: f"[{letter[0].lower()}{letter[0].upper()}]", match[1]
        )
        return f"(?:{letters})"

    return _IGNORES_CASE.sub(both_cases, pattern)
