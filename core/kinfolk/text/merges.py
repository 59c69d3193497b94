"""BPE merges of a model file, listed or derived from token scores."""

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

_MERGED_TYPES: Final = frozenset((TokenType.NORMAL, TokenType.UNDEFINED))
"""Types of tokens that merging can build. Other tokens are matched whole or never encoded."""


def read_merges(meta: Metadata, vocabulary: Vocabulary, *, scored: bool) -> list[Merge]:
    """The merges (left, right) of a file, in order of rank.

    ``scored``: a file without a list of merges has them derived from its token scores. Raises
    :class:`ModelFormatError` for a missing key or an invalid merge.
    """
    if not scored or MERGES in meta:
        return _listed_merges(meta, vocabulary)
    if SCORES not in meta:
        raise meta.fail(
            f"has neither key {MERGES!r} nor {SCORES!r}, so the order of merges is unknown; "
            "convert the model again",
            MERGES,
        )
    return _scored_merges(meta, vocabulary)


def _listed_merges(meta: Metadata, vocabulary: Vocabulary) -> list[Merge]:
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
    # The left symbol may itself begin with a space, if the vocabulary does not respell spaces.
    left, _, right = text.partition(" ") if text[:1] != " " else _split_after_space(text)
    return left, right


def _split_after_space(text: str) -> tuple[str, str, str]:
    left, space, right = text[1:].partition(" ")
    return f" {left}", space, right


def _scored_merges(meta: Metadata, vocabulary: Vocabulary) -> list[Merge]:
    """All pairs of tokens that concatenate to a token, ranked by that token's score, best first.

    SentencePiece and llama.cpp merge the pair whose token has the highest score, and of equal
    scores the leftmost. Ranks cannot express "leftmost", which matters only if different tokens
    share a score. In published files those are runs of one character (spaces, line ends); ranking
    the longer run first has the same effect: from the left, each run grows as long as it can.
    """
    texts, ids = vocabulary.texts, vocabulary.ids
    candidates = [
        token
        for token, kind in enumerate(vocabulary.types)
        if kind in _MERGED_TYPES and ids.get(texts[token]) == token
    ]
    known = {texts[token] for token in candidates}
    scores = _read_scores(meta, len(texts))
    merged_scores = [scores[token] for token in candidates if len(texts[token]) > 1]
    if len(set(merged_scores)) != 1 or len(merged_scores) == 1:
        candidates.sort(key=lambda token: (-scores[token], -len(texts[token])))
    else:
        logger.warning(
            "%s: key %r gives all tokens the same score; merging in order of token ids, which most "
            "vocabularies assign in order of training",
            meta.path,
            SCORES,
        )
    # More than a million splits in the largest vocabularies: keep the loop to set lookups.
    return [
        (left, right)
        for text in map(texts.__getitem__, candidates)
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
    values: list[float] = scores.tolist()
    return values
