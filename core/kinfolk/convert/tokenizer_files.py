"""Reads ``tokenizer.json`` and the settings beside it, for every kind of vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kinfolk.convert.checkpoint import CONFIG, read_json
from kinfolk.errors import ConversionError
from kinfolk.text.utf8 import fault
from kinfolk.text.vocabulary import TokenType

if TYPE_CHECKING:
    import tokenizers

_TOKENIZER: Final = "tokenizer.json"
_SETTINGS: Final = "tokenizer_config.json"
_GENERATION: Final = "generation_config.json"
TOKEN_ROLES: Final = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""Special tokens by their name in the settings, and by their name in the file."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files of a tokenizer: ``tokenizer.json`` as text, and the settings beside it.

    All methods raise :class:`ConversionError`, which names the file.
    """

    directory: Path
    path: Path
    json: dict[str, Any]
    settings: dict[str, Any]
    model_config: dict[str, Any]

    @classmethod
    def load(cls, directory: Path) -> TokenizerFiles:
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

    def tokens(
        self, vocabulary: int, added_type: Callable[[Mapping[str, Any]], TokenType]
    ) -> tuple[list[str], list[TokenType]]:
        """Texts and types of all ids; ids without a token are padding.

        ``added_type`` decides for the tokens that stand beside the model's vocabulary.
        """
        tokens = [f"[PAD{index}]" for index in range(vocabulary)]
        types = [TokenType.UNUSED] * vocabulary
        for text, index in self.section("model").get("vocab", {}).items():
            self._check_id(index, text, vocabulary)
            tokens[index], types[index] = text, TokenType.NORMAL
        for added in self.json.get("added_tokens", []):
            self._check_id(added["id"], added["content"], vocabulary)
            tokens[added["id"]] = added["content"]
            types[added["id"]] = added_type(added)
        if len(set(tokens)) < len(tokens):
            twice = next(text for text in tokens if tokens.count(text) > 1)
            raise self.fail(f"token {twice!r} occurs twice")
        return tokens, types

    def merges(self) -> list[str]:
        """Pairs, joined by the space that no token contains."""
        merges = self.section("model").get("merges", [])
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
        wrong = next((p for p in pairs if len(p) != 2 or any(" " in part for part in p)), None)
        if wrong is not None:
            raise self.fail(f"merge {wrong!r} is no pair of tokens without spaces")
        return [f"{left} {right}" for left, right in pairs]

    def specials(
        self, ids: Mapping[str, int], roles: Mapping[str, str] = TOKEN_ROLES
    ) -> Iterator[tuple[str, int]]:
        """Role and id: from the settings by text, else from the configuration by number."""
        text_config = self.model_config.get("text_config") or {}
        for role in roles:
            text = _content(self.settings.get(f"{role}_token"))
            number = self.model_config.get(f"{role}_token_id", text_config.get(f"{role}_token_id"))
            if isinstance(number, list):
                number = number[0] if number else None
            if text is not None:
                if text not in ids:
                    raise self.fail(f"{_SETTINGS} names {text!r}, which is no token")
                yield role, ids[text]
            elif isinstance(number, int) and 0 <= number < len(ids):
                yield role, number

    def turn_end(self, specials: Mapping[str, int], vocabulary: int) -> int | None:
        """The first of the configuration's ends of text that has no other role."""
        stated = self.model_config.get("eos_token_id")
        for end in stated if isinstance(stated, list) else ():
            if isinstance(end, int) and end not in specials.values():
                self._check_id(end, "of a turn's end", vocabulary)
                return end
        return None

    def adds_bos(self, bos: int | None) -> bool:
        """What the settings say, else whether an encoded text begins with the token."""
        stated = self.settings.get("add_bos_token")
        if isinstance(stated, bool):
            return stated
        return bos is not None and self._tokenizer().encode("a").ids[0] == bos

    def suppressed(self) -> list[int]:
        """Ids that an answer must not contain."""
        path = self.directory / _GENERATION
        found = (read_json(path).get("suppress_tokens") if path.is_file() else None) or []
        if not isinstance(found, list) or not all(isinstance(token, int) for token in found):
            raise ConversionError(f"{path}: key 'suppress_tokens' is {found!r}, no list of ids")
        return found

    def templates(self) -> Iterator[tuple[str, str]]:
        """The chat template, and others by their name."""
        file = self.directory / "chat_template.jinja"
        stated = self.settings.get("chat_template")
        if file.is_file():
            yield "tokenizer.chat_template", _read_text(file)
        elif isinstance(stated, str):
            yield "tokenizer.chat_template", stated
        elif isinstance(stated, list):
            for entry in stated:
                suffix = "" if entry["name"] == "default" else f".{entry['name']}"
                yield f"tokenizer.chat_template{suffix}", entry["template"]

    def section(self, name: str) -> dict[str, Any]:
        section = self.json.get(name)
        if not isinstance(section, dict):
            raise self.fail(f"it has no {name!r}")
        return section

    def fail(self, message: str) -> ConversionError:
        return ConversionError(f"{self.path}: {message}")

    def _check_id(self, index: int, text: str, vocabulary: int) -> None:
        if not 0 <= index < vocabulary:
            raise self.fail(
                f"token {text!r} has id {index}, but {CONFIG} says vocab_size {vocabulary}"
            )

    def _tokenizer(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(self.path))
        except Exception as error:  # the library raises nothing narrower
            raise self.fail(f"the tokenizers library cannot load it: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path}: {fault(error)}; save it as UTF-8") from None


def _content(token: object) -> str | None:
    """A special token is stated as its text or as an object with ``content``."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
