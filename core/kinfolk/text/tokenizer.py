"""Text to token ids and back, from the metadata of a model file alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from kinfolk.errors import RequestError
from kinfolk.text.formats import ChatFormat, PreTokenizer
from kinfolk.text.merges import read_merges
from kinfolk.text.pretokenizers import DEFAULT, Claims, find
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

MODEL: Final = "tokenizer.ggml.model"
PRE: Final = "tokenizer.ggml.pre"
BYTE_LEVEL: Final = "gpt2"


class Tokenizer:
    """The tokenizer of one model file.

    Text is taken as it is: no Unicode normalisation. A lone surrogate, which UTF-8 cannot hold, is
    read as U+FFFD. Some SentencePiece files ask for a space in front of a text and of what follows
    a special token; decoding takes it away again.

    ``bos`` and ``eos`` are ids or ``None``; ``eog`` are all ids that end a generation; ``adds_bos``
    says whether a prompt begins with ``bos`` if the caller does not say.
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
        found = {self._printed(token): token for token in specials.values()}
        written = {
            text: token
            for text, token in found.items()
            if vocabulary.types[token] is TokenType.USER_DEFINED
        }
        self._all_specials = SpecialMatcher(found)
        self._written_specials = SpecialMatcher(written)
        self._special_ids = frozenset(specials.values())
        self._check_ids(specials)
        # A marker may be a special token and a few words after it.
        self._markers = frozenset(
            token
            for text, token in specials.items()
            if any(text in marker for marker in chat.markers)
        )
        self.bos = vocabulary.bos
        self.eos = vocabulary.eos
        self.eog = vocabulary.eog
        wanted = pre.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
        self.adds_bos = (wanted or pre.needs_bos) and vocabulary.bos is not None
        if missing := self._symbols.unspelled(ids):
            unknown = vocabulary.unknown_name
            logger.info(
                "the vocabulary has no token for %d symbols (%s); encoding %s",
                len(missing),
                ", ".join(missing),
                "drops them" if unknown is None else f"makes them {unknown!r}",
            )

    @classmethod
    def from_metadata(
        cls,
        meta: Metadata,
        families: Iterable[Claims] = (),
        *,
        own: str = "",
        chat: ChatFormat | None = None,
    ) -> Tokenizer:
        """The tokenizer of a file. ``own`` is the name of the model's family, ``chat`` its format.

        Raises :class:`ModelFormatError` if the file is at fault and
        :class:`UnsupportedModelError` if no family in ``families`` knows how to cut its text.
        """
        chat = chat or ChatFormat()
        byte_level = meta.string(MODEL) == BYTE_LEVEL
        name = _pre_name(meta) if byte_level else meta.string(MODEL)
        pre = find(name, families, own=own, path=meta.path, byte_level=byte_level)
        vocabulary = read_vocabulary(meta, chat)
        merges = read_merges(meta, vocabulary, scored=symbols_of(pre).scored)
        return cls(vocabulary, merges, pre, chat)

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = True
    ) -> list[int]:
        """Ids of a text.

        With ``parse_special`` texts of special tokens become those tokens. Without it control
        tokens are spelled out as plain text; user-defined tokens are still taken whole, because a
        model never saw them spelled out. ``add_bos=None`` does what the file asks for.
        """
        matcher = self._all_specials if parse_special else self._written_specials
        ids = [self._required_bos()] if self._wants_bos(add_bos) else []
        for part in matcher.split(well_formed(text)):
            ids.extend([part] if isinstance(part, int) else self.encode_plain(part))
        return ids

    def split_specials(self, text: str) -> list[str | int]:
        """Where special tokens stand in a text: plain pieces and ids, in order.

        ``encode`` treats the pieces separately, so equal leading parts mean equal leading ids.
        """
        return self._all_specials.split(well_formed(text))

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text without a look at special tokens, at the beginning or behind one."""
        return self._symbols.encode(self._plain, f" {text}" if self._prefix and text else text)

    def decode(self, ids: Iterable[int], *, skip_control: bool = False) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD.

        Control tokens are written as their texts, unless ``skip_control``.
        """
        written = []
        before = None
        for token in ids:
            if not (skip_control and self.is_hidden(token)):
                written.append(self.bytes_after(before, token))
            before = token
        return b"".join(written).decode("utf-8", errors="replace")

    def bytes_after(self, before: int | None, token: int) -> bytes:
        """What a token adds to the text behind another token, or with ``None`` at its beginning.

        Of a space that encoding puts there the text knows nothing.
        """
        raw = self.token_bytes(token)
        begins = before is None or self.is_special(before)
        if self._prefix and begins and not self.is_special(token):
            return raw.removeprefix(b" ")
        return raw

    def token_bytes(self, token: int) -> bytes:
        """What a token writes: its text for special tokens, nothing for unused ones."""
        known = self._bytes[self._checked(token)]
        if known is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def token_text(self, token: int) -> str:
        """The text of a token as the file has it, in the file's own letters."""
        return self._vocabulary.texts[self._checked(token)]

    def is_control(self, token: int) -> bool:
        """Whether a token steers the model instead of writing text."""
        return self._vocabulary.types[self._checked(token)] in HIDDEN

    def is_hidden(self, token: int) -> bool:
        """Whether a token is kept out of answers: control, and no marker of the chat format.

        Markers of reasoning and tool calls are shown whatever their type, for whoever takes the
        answer apart must see them.
        """
        return self.is_control(token) and token not in self._markers

    def is_special(self, token: int) -> bool:
        """Whether a token is found in text as a whole."""
        return token in self._special_ids

    def _check_ids(self, specials: Mapping[str, int]) -> None:
        """The library must know as many tokens as the file, and under the same ids."""
        assert self._plain.get_vocab_size(with_added_tokens=False) == self.vocab_size
        for text, token in specials.items():
            assert self._plain.token_to_id(text) == token, f"token {text!r} has moved"

    def _spell(self, token: int) -> bytes:
        kind = self._vocabulary.types[token]
        if kind is TokenType.UNUSED:
            return b""
        if kind in HIDDEN or kind is TokenType.USER_DEFINED:
            return self._printed(token).encode("utf-8")
        return self._symbols.token_bytes(self._vocabulary.texts[token])

    def _printed(self, token: int) -> str:
        """The text of a special token as it stands in texts."""
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
    """Text -> id of the tokens that are found in text as a whole."""
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
    """The id of the way a byte-level file cuts text."""
    if PRE not in meta:
        logger.warning("%s: key %r is missing, %r is assumed", meta.path, PRE, DEFAULT)
    return meta.string(PRE, default=DEFAULT)
