"""Tokenizer of a model file: text to token ids and back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from kinfolk.errors import RequestError
from kinfolk.text.formats import ChatFormat, PreTokenizer
from kinfolk.text.merges import read_merges
from kinfolk.text.pretokenizers import DEFAULT, PreTokenizerProvider, find_pretokenizer
from kinfolk.text.specials import SpecialMatcher
from kinfolk.text.symbols import symbols_of
from kinfolk.text.vocabulary import (
    HIDDEN,
    TokenType,
    Vocabulary,
    read_vocabulary,
)

if TYPE_CHECKING:
    from kinfolk.gguf.metadata import Metadata

logger = logging.getLogger(__name__)

MODEL_KEY: Final = "tokenizer.ggml.model"
PRE: Final = "tokenizer.ggml.pre"
BYTE_LEVEL: Final = "gpt2"


class Tokenizer:
    """The tokenizer of one model file.

    Text is not normalised; a lone surrogate, which UTF-8 cannot encode, becomes U+FFFD.
    SentencePiece files may ask for a space prefix at the start of a text and behind a special
    token; decoding removes it.

    ``bos`` and ``eos`` are ids or ``None``; ``eog`` are all end-of-generation ids; ``adds_bos`` is
    whether ``encode`` prepends ``bos`` by default.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        merges: list[tuple[str, str]],
        pre: PreTokenizer,
        chat: ChatFormat,
    ):
        ids = vocabulary.ids
        self._vocabulary = vocabulary
        self.vocab_size = len(vocabulary.texts)
        self._symbols = symbols_of(pre)
        self._plain = self._symbols.build(vocabulary, merges, pre)
        self._prefix = self._symbols.space_prefix and vocabulary.add_space is not False
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        specials = _special_ids(vocabulary)
        literals = {self._literal(token): token for token in specials.values()}
        user_defined = {
            text: token
            for text, token in literals.items()
            if vocabulary.types[token] is TokenType.USER_DEFINED
        }
        self._all_specials = SpecialMatcher(literals)
        self._user_defined_specials = SpecialMatcher(user_defined)
        self._special_ids = frozenset(specials.values())
        self._check_ids(specials)
        # A marker may be a special token followed by a few words.
        self._markers = frozenset(
            token
            for text, token in specials.items()
            if any(text in marker for marker in chat.markers)
        )
        self.bos = vocabulary.bos
        self.eos = vocabulary.eos
        self.eog = vocabulary.eog
        add_bos = pre.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
        self.adds_bos = (add_bos or pre.needs_bos) and vocabulary.bos is not None
        if missing := self._symbols.missing(ids):
            unknown = vocabulary.unknown_name
            logger.info(
                "the vocabulary has no token for %d symbols (%s); encoding %s",
                len(missing),
                ", ".join(missing),
                "drops them" if unknown is None else f"replaces them by {unknown!r}",
            )

    @classmethod
    def from_metadata(
        cls,
        meta: Metadata,
        families: Iterable[PreTokenizerProvider] = (),
        *,
        own: str = "",
        chat: ChatFormat | None = None,
    ) -> Tokenizer:
        """The tokenizer of a file. ``own`` is the name of the model's family, ``chat`` its format.

        Raises :class:`ModelFormatError` for an invalid file, :class:`UnsupportedModelError` if no
        family in ``families`` has its pre-tokenizer.
        """
        chat = chat or ChatFormat()
        byte_level = meta.string(MODEL_KEY) == BYTE_LEVEL
        name = _pre_name(meta) if byte_level else meta.string(MODEL_KEY)
        pre = find_pretokenizer(name, families, own=own, path=meta.path, byte_level=byte_level)
        vocabulary = read_vocabulary(meta, chat)
        merges = read_merges(meta, vocabulary, scored=symbols_of(pre).scored)
        return cls(vocabulary, merges, pre, chat)

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = True
    ) -> list[int]:
        """Ids of a text.

        With ``parse_special`` the texts of special tokens are encoded as those tokens; without it
        control tokens are encoded as plain text, user-defined tokens as tokens nevertheless,
        because training data never spells them out. ``add_bos=None`` is the default of the file.
        Raises :class:`RequestError` if a BOS is required and the model has none.
        """
        matcher = self._all_specials if parse_special else self._user_defined_specials
        ids = [self._required_bos()] if self._wants_bos(add_bos) else []
        for part in matcher.split(well_formed(text)):
            ids.extend([part] if isinstance(part, int) else self.encode_plain(part))
        return ids

    def split_specials(self, text: str) -> list[str | int]:
        """A text as plain pieces and ids of special tokens, in order.

        ``encode`` encodes the pieces separately, so equal leading parts have equal leading ids.
        """
        return self._all_specials.split(well_formed(text))

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a plain text at the start of a prompt or behind a special token; special tokens in
        it are not parsed."""
        return self._symbols.encode(self._plain, f" {text}" if self._prefix and text else text)

    def decode(self, ids: Iterable[int], *, skip_control: bool = False) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD.

        Control tokens decode to their texts, or with ``skip_control`` to nothing. Raises
        :class:`RequestError` for an id outside of the vocabulary.
        """
        pieces = []
        before = None
        for token in ids:
            if not (skip_control and self.is_hidden(token)):
                pieces.append(self.bytes_after(before, token))
            before = token
        return b"".join(pieces).decode("utf-8", errors="replace")

    def bytes_after(self, before: int | None, token: int) -> bytes:
        """The bytes that a token appends behind the token ``before``, ``None`` = start of the text.

        The space prefix that ``encode`` adds is removed.
        """
        raw = self.token_bytes(token)
        begins = before is None or self.is_special(before)
        if self._prefix and begins and not self.is_special(token):
            return raw.removeprefix(b" ")
        return raw

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token decodes to: its text for special tokens, none for unused ones."""
        known = self._bytes[self._checked(token)]
        if known is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def token_text(self, token: int) -> str:
        """The text of a token as stored in the file, undecoded."""
        return self._vocabulary.texts[self._checked(token)]

    def has_tokens_of(self, other: Tokenizer) -> bool:
        """Whether an id means the same text in both vocabularies, for all ids."""
        mine, theirs = self._vocabulary, other._vocabulary
        return mine.texts == theirs.texts and mine.types == theirs.types

    def is_control(self, token: int) -> bool:
        """Whether a token is of type control or unknown: not part of the text."""
        return self._vocabulary.types[self._checked(token)] in HIDDEN

    def is_hidden(self, token: int) -> bool:
        """Whether a token is left out of answers: a control token that is no chat marker.

        Markers of reasoning and tool calls stay in the text, because the parsers of answers need
        them.
        """
        return self.is_control(token) and token not in self._markers

    def is_special(self, token: int) -> bool:
        """Whether a token is matched in text as a whole, before pre-tokenization."""
        return token in self._special_ids

    def _check_ids(self, specials: Mapping[str, int]) -> None:
        """Assert that the library has the tokens of the file, under the same ids."""
        assert self._plain.get_vocab_size(with_added_tokens=False) == self.vocab_size
        for text, token in specials.items():
            assert self._plain.token_to_id(text) == token, f"token {text!r} has moved"

    def _spell(self, token: int) -> bytes:
        kind = self._vocabulary.types[token]
        if kind is TokenType.UNUSED:
            return b""
        if kind in HIDDEN or kind is TokenType.USER_DEFINED:
            return self._literal(token).encode("utf-8")
        return self._symbols.token_bytes(self._vocabulary.texts[token])

    def _literal(self, token: int) -> str:
        """The plain text that a special token matches."""
        text = self._vocabulary.texts[token]
        if self._vocabulary.types[token] is TokenType.USER_DEFINED:
            return self._symbols.literal(text)
        return text

    def _wants_bos(self, add_bos: bool | None) -> bool:
        return self.adds_bos if add_bos is None else add_bos

    def _required_bos(self) -> int:
        if self.bos is None:
            raise RequestError("this model has no token for the beginning of a text (BOS)")
        return self.bos

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise RequestError(
                f"token {token} is outside of the vocabulary of {self.vocab_size} tokens"
            )
        return token


def _special_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Token text -> id of the tokens that are matched in text as a whole."""
    kinds = HIDDEN | {TokenType.USER_DEFINED}
    tokens = [token for token, kind in enumerate(vocabulary.types) if kind in kinds]
    texts = vocabulary.texts
    return {texts[token]: token for token in tokens if vocabulary.ids.get(texts[token]) == token}


def well_formed(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _pre_name(meta: Metadata) -> str:
    """The pre-tokenizer id of a byte-level file."""
    if PRE not in meta:
        logger.warning("%s: key %r is missing; assuming %r", meta.path, PRE, DEFAULT)
    return meta.string(PRE, default=DEFAULT)
