"""From ``tokenizer.json`` and its companions to the ``tokenizer.*`` keys of a model file.

Only byte-level byte-pair vocabularies so far, ``tokenizer.ggml.model`` = ``gpt2``. How text is cut
before merging has no place in the file except for an id, so a tokenizer that cuts in a way no
installed family knows is refused. Text is not normalised at run time; a normaliser other than the
harmless NFC is refused too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kinfolk.convert.checkpoint import CONFIG, read_json
from kinfolk.convert.plan import TokenizerReader
from kinfolk.errors import ConversionError
from kinfolk.text.formats import PreTokenizer
from kinfolk.text.vocabulary import ADD_BOS, MERGES, TOKEN_TYPE, TOKENS, TokenType

if TYPE_CHECKING:
    import tokenizers

_TOKENIZER: Final = "tokenizer.json"
_SETTINGS: Final = "tokenizer_config.json"
_LOOKS_SPECIAL: Final = re.compile(r"<\|.*\|>", re.DOTALL)
_IGNORES_CASE: Final = re.compile(r"\(\?i:([^()]*)\)")
_ROLES: Final = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""Special tokens by their name in the settings, and by their name in the file."""


def byte_level(vocabulary: int, pretokenizers: Iterable[PreTokenizer]) -> TokenizerReader:
    """Reads a byte-level vocabulary, padded to ``vocabulary`` entries.

    ``pretokenizers`` are the ways to cut text that the family knows.
    """
    known = tuple(pretokenizers)

    def read(directory: Path) -> Mapping[str, object]:
        return _ByteLevelFiles.load(directory).keys(vocabulary, known)

    return read


@dataclass(frozen=True, slots=True)
class _ByteLevelFiles:
    """The files of a tokenizer: ``tokenizer.json`` as text, and the settings beside it."""

    directory: Path
    path: Path
    json: dict[str, Any]
    settings: dict[str, Any]
    model_config: dict[str, Any]

    @classmethod
    def load(cls, directory: Path) -> _ByteLevelFiles:
        path = directory / _TOKENIZER
        if not path.is_file():
            raise ConversionError(
                f"{path} is missing; save the model's tokenizer there, or convert without one"
            )
        settings = directory / _SETTINGS
        return cls(
            directory,
            path,
            read_json(path),
            read_json(settings) if settings.is_file() else {},
            read_json(directory / CONFIG),
        )

    def keys(self, vocabulary: int, known: tuple[PreTokenizer, ...]) -> dict[str, object]:
        tokens, types = self._tokens(vocabulary)
        result: dict[str, object] = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": self._pretokenizer(known),
            TOKENS: tokens,
            TOKEN_TYPE: np.array(types, np.int32),
            MERGES: self._merges(),
        }
        ids = dict(zip(tokens, range(vocabulary), strict=True))
        specials = dict(self._specials(ids))
        for role, name in _ROLES.items():
            if role in specials:
                result[f"tokenizer.ggml.{name}_token_id"] = specials[role]
        result[ADD_BOS] = self._adds_bos(specials.get("bos"))
        return result | dict(self._templates())

    # -- vocabulary -------------------------------------------------------------------------------

    def _tokens(self, vocabulary: int) -> tuple[list[str], list[TokenType]]:
        """Texts and types of all ids; ids without a token are padding."""
        model = self._section("model")
        if model.get("type") != "BPE" or model.get("byte_fallback"):
            raise self._fail(
                f"the vocabulary is of type {model.get('type')!r}; only byte-level BPE can be "
                "converted"
            )
        tokens = [f"[PAD{index}]" for index in range(vocabulary)]
        types = [TokenType.UNUSED] * vocabulary
        for text, index in model.get("vocab", {}).items():
            self._check_id(index, text, vocabulary)
            tokens[index], types[index] = text, TokenType.NORMAL
        for added in self.json.get("added_tokens", []):
            self._check_id(added["id"], added["content"], vocabulary)
            tokens[added["id"]] = added["content"]
            types[added["id"]] = _added_type(added)
        if len(set(tokens)) < len(tokens):
            twice = next(text for text in tokens if tokens.count(text) > 1)
            raise self._fail(f"token {twice!r} occurs twice")
        return tokens, types

    def _merges(self) -> list[str]:
        """Pairs, joined by the space that no byte-level token contains."""
        merges = self._section("model").get("merges", [])
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
        wrong = next((p for p in pairs if len(p) != 2 or any(" " in part for part in p)), None)
        if wrong is not None:
            raise self._fail(f"merge {wrong!r} is no pair of byte-level tokens")
        return [f"{left} {right}" for left, right in pairs]

    def _check_id(self, index: int, text: str, vocabulary: int) -> None:
        if not 0 <= index < vocabulary:
            raise self._fail(
                f"token {text!r} has id {index}, but {CONFIG} says vocab_size {vocabulary}"
            )

    # -- cutting ----------------------------------------------------------------------------------

    def _pretokenizer(self, known: tuple[PreTokenizer, ...]) -> str:
        """The id of the way this tokenizer cuts text."""
        normalizer = self.json.get("normalizer")
        if normalizer is not None and normalizer.get("type") != "NFC":
            raise self._fail(f"normaliser {normalizer.get('type')!r} cannot be converted")
        patterns = tuple(self._patterns())
        for pre in known:
            if pre.patterns == patterns:
                return pre.name
        names = ", ".join(repr(pre.name) for pre in known) or "none"
        raise self._fail(
            f"it cuts text by {' then '.join(patterns)!s}, which is none of the ways the model's "
            f"family knows ({names}); the plugin of the family must learn it first"
        )

    def _patterns(self) -> Iterator[str]:
        """The regular expressions in order; the last step must spell bytes as letters."""
        pre = self._section("pre_tokenizer")
        steps = pre.get("pretokenizers", []) if pre.get("type") == "Sequence" else [pre]
        last = steps[-1] if steps else {}
        if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
            raise self._fail(
                "its pre-tokenizer does not end in a ByteLevel step without prefix space, so the "
                "vocabulary is not a byte-level one"
            )
        for step in steps[:-1]:
            pattern = step.get("pattern", {}).get("Regex")
            if step.get("type") != "Split" or pattern is None or step.get("invert"):
                raise self._fail(f"pre-tokenizer step {step.get('type')!r} cannot be converted")
            if step.get("behavior") != "Isolated":
                raise self._fail(f"a split of behaviour {step['behavior']!r} cannot be converted")
            yield spelled_out(pattern)
        if last.get("use_regex"):
            yield GPT2_PATTERN

    # -- special tokens and templates -------------------------------------------------------------

    def _specials(self, ids: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """Role and id: from the settings by text, else from the configuration by number."""
        text_config = self.model_config.get("text_config") or {}
        for role in _ROLES:
            text = _content(self.settings.get(f"{role}_token"))
            number = self.model_config.get(f"{role}_token_id", text_config.get(f"{role}_token_id"))
            if isinstance(number, list):
                number = number[0] if number else None
            if text is not None:
                if text not in ids:
                    raise self._fail(f"{_SETTINGS} names {text!r}, which is no token")
                yield role, ids[text]
            elif isinstance(number, int) and 0 <= number < len(ids):
                yield role, number

    def _adds_bos(self, bos: int | None) -> bool:
        """What the settings say, else whether an encoded text begins with the token."""
        stated = self.settings.get("add_bos_token")
        if isinstance(stated, bool):
            return stated
        return bos is not None and self._tokenizer().encode("a").ids[0] == bos

    def _tokenizer(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(self.path))
        except Exception as error:  # the library raises nothing narrower
            raise self._fail(f"the tokenizers library cannot load it: {error}") from None

    def _templates(self) -> Iterator[tuple[str, str]]:
        """The chat template, and others by their name."""
        file = self.directory / "chat_template.jinja"
        stated = self.settings.get("chat_template")
        if file.is_file():
            yield "tokenizer.chat_template", file.read_text("utf-8")
        elif isinstance(stated, str):
            yield "tokenizer.chat_template", stated
        elif isinstance(stated, list):
            for entry in stated:
                suffix = "" if entry["name"] == "default" else f".{entry['name']}"
                yield f"tokenizer.chat_template{suffix}", entry["template"]

    # -- access -----------------------------------------------------------------------------------

    def _section(self, name: str) -> dict[str, Any]:
        section = self.json.get(name)
        if not isinstance(section, dict):
            raise self._fail(f"it has no {name!r}")
        return section

    def _fail(self, message: str) -> ConversionError:
        return ConversionError(f"{self.path}: {message}")


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


def _added_type(added: Mapping[str, Any]) -> TokenType:
    if added.get("special") or _LOOKS_SPECIAL.fullmatch(added["content"]):
        return TokenType.CONTROL
    return TokenType.USER_DEFINED


def _content(token: object) -> str | None:
    """A special token is stated as its text or as an object with ``content``."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
