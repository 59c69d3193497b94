"""Which two tokens make a third, and in what order: as a file lists it, or by its scores."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from kinfolk.text.vocabulary import MERGES, SCORES, TokenType

if TYPE_CHECKING:
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.text.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

Merge = tuple[str, str]

_MADE: Final = frozenset((TokenType.NORMAL, TokenType.UNDEFINED))
"""Types of tokens that scores may make. Others are found whole, or no text can spell them."""


def read_merges(meta: Metadata, vocabulary: Vocabulary, *, scored: bool) -> list[Merge]:
    """The merges of a file in order of rank, each of two tokens into a third.

    ``scored``: if the file lists none, they follow from the scores of its tokens.
    """
    if not scored or MERGES in meta:
        return _listed(meta, vocabulary)
    if SCORES not in meta:
        raise meta.fail(
            f"has neither key {MERGES!r} nor {SCORES!r}, so that nothing says in what order its "
            "tokens are merged; convert the model again",
            MERGES,
        )
    return _by_score(meta, vocabulary)


def _listed(meta: Metadata, vocabulary: Vocabulary) -> list[Merge]:
    ids = vocabulary.ids
    merges = [_pair(text) for text in meta.strings(MERGES)]
    for rank, (left, right) in enumerate(merges):
        if left not in ids or right not in ids or left + right not in ids:
            raise meta.fail(
                f"entry {rank} of key {MERGES!r} is {meta.strings(MERGES)[rank]!r}, which does not "
                "merge two tokens into a third; the file is damaged or was converted wrongly",
                MERGES,
            )
    return merges


def _pair(text: str) -> Merge:
    # The first symbol may itself be a space where spaces are not respelled.
    left, _, right = text.partition(" ") if text[:1] != " " else _after_a_space(text)
    return left, right


def _after_a_space(text: str) -> tuple[str, str, str]:
    left, space, right = text[1:].partition(" ")
    return f" {left}", space, right


def _by_score(meta: Metadata, vocabulary: Vocabulary) -> list[Merge]:
    """Every way to make a token of two others, the token of the highest score first.

    SentencePiece and llama.cpp merge what makes the token of the highest score, and of equal ones
    the leftmost. Ranks can say all of that but "leftmost", which matters only where different
    tokens have one score. Files do so for runs of one character (spaces, line ends), and there
    longer ones first amounts to the same: from the left each run becomes as long as it can.
    """
    texts, ids = vocabulary.texts, vocabulary.ids
    made = [
        token
        for token, kind in enumerate(vocabulary.types)
        if kind in _MADE and ids.get(texts[token]) == token
    ]
    known = {texts[token] for token in made}
    scores = _read_scores(meta, len(texts))
    stated = [scores[token] for token in made if len(texts[token]) > 1]
    if len(set(stated)) != 1 or len(stated) == 1:
        made.sort(key=lambda token: (-scores[token], -len(texts[token])))
    else:
        logger.warning(
            "%s: key %r gives all tokens the same score, so they are merged in the order of their "
            "ids, which is that of training in most vocabularies",
            meta.path,
            SCORES,
        )
    # More than a million places in the largest vocabularies: nothing here but looking up.
    return [
        (left, right)
        for text in map(texts.__getitem__, made)
        for cut in range(len(text) - 1, 0, -1)
        if (left := text[:cut]) in known and (right := text[cut:]) in known
    ]


def _read_scores(meta: Metadata, count: int) -> list[float]:
    scores = meta.numbers(SCORES)
    if len(scores) != count:
        raise meta.fail(f"key {SCORES!r} has {len(scores)} entries for {count} tokens", SCORES)
    if np.isnan(scores).any():
        token = int(np.isnan(scores).argmax())
        raise meta.fail(f"entry {token} of key {SCORES!r} is not a number", SCORES)
    found: list[float] = scores.tolist()
    return found
