"""Vocabulary of a model file: token texts, token types, end-of-generation ids."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.text.formats import ChatFormat

logger = logging.getLogger(__name__)

TOKENS: Final = "tokenizer.ggml.tokens"
TOKEN_TYPE: Final = "tokenizer.ggml.token_type"
SCORES: Final = "tokenizer.ggml.scores"
MERGES: Final = "tokenizer.ggml.merges"
ADD_BOS: Final = "tokenizer.ggml.add_bos_token"
ADD_SPACE: Final = "tokenizer.ggml.add_space_prefix"
BOS: Final = "tokenizer.ggml.bos_token_id"
UNKNOWN: Final = "tokenizer.ggml.unknown_token_id"
EOS: Final = "tokenizer.ggml.eos_token_id"
EOT: Final = "tokenizer.ggml.eot_token_id"
EOM: Final = "tokenizer.ggml.eom_token_id"

COMMON_ENDS: Final = frozenset(
    (
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<eos>",
        "<EOT>",
        "</s>",
    )
)
"""Token texts that end a generation in any model, if they are control tokens."""

MAX_TOKEN_TEXT: Final = 4096
"""Most characters of a token's text. Published vocabularies have at most a few hundred; what merges
make of a text takes the square of its length."""


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


HIDDEN: Final = frozenset((TokenType.CONTROL, TokenType.UNKNOWN))
"""Types of tokens that are not part of generated text."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token list of a file. ``texts`` and ``types`` are indexed by id.

    ``ids`` maps texts to ids, with one entry for each id, in order of ids. ``eog`` are the
    end-of-generation ids: those named in the file, control tokens in ``COMMON_ENDS`` and the
    family's ``stop_tokens``, without its ``keep_tokens``. ``add_bos`` and ``add_space`` are flags
    of the file, ``None`` if absent.
    """

    texts: tuple[str, ...]
    types: tuple[TokenType, ...]
    ids: dict[str, int]
    bos: int | None
    eos: int | None
    unknown: int | None
    eog: frozenset[int]
    add_bos: bool | None
    add_space: bool | None

    @property
    def unknown_name(self) -> str | None:
        """The name of the unknown token in ``ids``, ``None`` if the file has none."""
        return None if self.unknown is None else list(self.ids)[self.unknown]


def read_vocabulary(meta: Metadata, chat: ChatFormat) -> Vocabulary:
    """The vocabulary of a file. Raises :class:`ModelFormatError` naming the key at fault."""
    texts = tuple(meta.strings(TOKENS))
    if not texts:
        raise meta.fail(f"key {TOKENS!r} is empty", TOKENS)
    longest = max(range(len(texts)), key=lambda token: len(texts[token]))
    if len(texts[longest]) > MAX_TOKEN_TEXT:
        raise meta.fail(
            f"token {longest} of key {TOKENS!r} has {len(texts[longest])} characters, more than "
            f"{MAX_TOKEN_TEXT}",
            TOKENS,
        )
    types = _read_types(meta, len(texts))
    bos, eos, eot, eom = (_read_id(meta, key, len(texts)) for key in (BOS, EOS, EOT, EOM))
    kept = frozenset(chat.keep_tokens)
    eog = {token for token in (eos, eot, eom) if token is not None and texts[token] not in kept}
    for token in _ends_of_text(texts, types, chat):
        if texts[token] not in kept:
            eog.add(token)
            # Some converters mark end tokens as normal; they are never part of the text.
            types[token] = TokenType.CONTROL
    return Vocabulary(
        texts=texts,
        types=tuple(types),
        ids=_unique_ids(texts, types),
        bos=bos,
        eos=eos,
        unknown=_read_id(meta, UNKNOWN, len(texts)),
        eog=frozenset(eog),
        add_bos=_read_flag(meta, ADD_BOS),
        add_space=_read_flag(meta, ADD_SPACE),
    )


def _unique_ids(texts: Sequence[str], types: Sequence[TokenType]) -> dict[str, int]:
    """Unique name -> id, for every id, in order.

    Of several tokens with one text the last used one keeps it, as in llama.cpp. The others, and
    texts that cannot be names, get a name that begins with NUL, so that no id moves.
    """
    ids = {text: token for token, text in enumerate(texts)}
    if len(ids) == len(texts) and all(map(_can_be_name, texts)):
        return ids
    owner = {
        text: token
        for token, text in enumerate(texts)
        if _can_be_name(text) and types[token] is not TokenType.UNUSED
    }
    result: dict[str, int] = {}
    for token, text in enumerate(texts):
        lost = not _can_be_name(text) or text in result or owner.get(text, token) != token
        result[f"\0{token}" if lost else text] = token
    return result


def _can_be_name(text: str) -> bool:
    """Whether no name that is made up can be this text."""
    return text != "" and (text[0] != "\0" or len(text) == 1)


def _read_types(meta: Metadata, count: int) -> list[TokenType]:
    if TOKEN_TYPE not in meta:
        return [TokenType.NORMAL] * count
    numbers: Sequence[int] = meta.integers(TOKEN_TYPE).tolist()
    if len(numbers) != count:
        raise meta.fail(
            f"key {TOKEN_TYPE!r} has {len(numbers)} entries for {count} tokens", TOKEN_TYPE
        )
    known = {int(kind): kind for kind in TokenType}
    try:
        return [known[number] for number in numbers]
    except KeyError as error:
        raise meta.fail(
            f"key {TOKEN_TYPE!r} holds {error}, expected 0 to {max(TokenType)}", TOKEN_TYPE
        ) from None


def _read_flag(meta: Metadata, key: str) -> bool | None:
    return meta.boolean(key) if key in meta else None


def _read_id(meta: Metadata, key: str, count: int) -> int | None:
    if key not in meta:
        return None
    # Converters write -1 for "none" in any integer type, signed or not.
    token = meta.integer(key, minimum=-(2**63), maximum=2**64)
    if 0 <= token < count:
        return token
    logger.warning("%s: key %r is %d, beyond the %d tokens; ignored", meta.path, key, token, count)
    return None


def _ends_of_text(texts: Sequence[str], types: Sequence[TokenType], chat: ChatFormat) -> list[int]:
    """Ids of end tokens by text: the family's ``stop_tokens`` of any type, and ``COMMON_ENDS``.

    A common end counts only as a control token: a normal ``</s>`` may be the HTML tag.
    """
    stops = frozenset(chat.stop_tokens)
    ends = stops | COMMON_ENDS
    tokens = [token for token, text in enumerate(texts) if text in ends]
    return [token for token in tokens if texts[token] in stops or types[token] is TokenType.CONTROL]
