"""Texts with needles: a fact, ``@ key = value ;``, somewhere in filler, and a question for it,
``? key =``. Both begin a paragraph.

Every word is one token, so a text is its words, each behind a space. Keys and values are symbols,
of two capitals; filler is made of other words. A decoy is a fact whose key begins like that of the
needle and whose value is another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pocket import tokenizer as words
from tokenizers import Tokenizer

Ids = NDArray[np.int64]

KEY_WORDS = 6
SHARED_WORDS = 4
"""Words at the start of a decoy's key that are those of the needle's."""

START, FACT, ASK, IS, END = " #", " @", " ?", " =", " ;"
"""A text begins with START. It gives attention a place for what finds nothing, and that place is in
the first chunk, which always stays."""
SYMBOLS = tuple(f" {a}{b}" for a, b in itertools.product("ABCDEFGHIJKLMNOP", repeat=2))
PARAGRAPH = "\n\n"
_WORDS = [f" {a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "l", "n", "s")]
FILLER = (" .", *_WORDS[:16], PARAGRAPH, *_WORDS[16:])
"""The most frequent first. What compresses prompts takes the last paragraph for the question."""


def make_tokenizer(symbols: int = len(SYMBOLS)) -> Tokenizer:
    """The tokenizer of the needle model: each of the words above is one token, of the symbols so
    many."""
    alone = [*SYMBOLS[:symbols], *FILLER, START, FACT, ASK, IS, END]
    return words.with_specials(words.train(alone, vocabulary=4096))


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The ids of the words, as a tokenizer has them."""

    symbols: Ids
    filler: Ids
    chances: NDArray[np.float64]
    start: int
    fact: int
    ask: int
    is_: int
    end: int
    paragraph: int

    @classmethod
    def of(cls, encode: Callable[[str], Sequence[int]]) -> Lexicon:
        """Symbols are those that the tokenizer has. Raises :class:`ValueError` if it lacks another
        word."""

        def known(words: tuple[str, ...]) -> list[int]:
            return [ids[0] for ids in map(encode, words) if len(ids) == 1]

        symbols, filler = known(SYMBOLS), known(FILLER)
        marks = known((START, FACT, ASK, IS, END, PARAGRAPH))
        if not symbols or len(filler) < len(FILLER) or len(marks) < 6:
            raise ValueError("the tokenizer is not that of a needle model")
        # Few words are frequent, as in a language.
        chances = 1 / np.arange(2, len(filler) + 2)
        return cls(np.array(symbols), np.array(filler), chances / chances.sum(), *marks)


@dataclass(frozen=True, slots=True)
class Fact:
    key: Ids
    value: Ids


class Writer:
    """Writes texts of one length of values; ``random`` decides all of them."""

    def __init__(self, lexicon: Lexicon, value_words: int, random: np.random.Generator) -> None:
        self.lexicon, self.value_words, self.random = lexicon, value_words, random

    @property
    def unit(self) -> int:
        """Tokens of a fact, and of a question with its answer."""
        return KEY_WORDS + self.value_words + 4

    def fact(self) -> Fact:
        symbols = self.random.choice(self.lexicon.symbols, KEY_WORDS + self.value_words)
        return Fact(symbols[:KEY_WORDS], symbols[KEY_WORDS:])

    def decoy(self, of: Fact) -> Fact:
        """Another fact, whose key begins like ``of``'s and ends otherwise."""
        while True:
            other = self.fact()
            other.key[:SHARED_WORDS] = of.key[:SHARED_WORDS]
            if (other.key[SHARED_WORDS:] != of.key[SHARED_WORDS:]).all():
                return other

    def facts(self, count: int, decoys: float) -> list[Fact]:
        """So many facts, of which a part ``decoys`` comes in pairs of needle and decoy."""
        found: list[Fact] = []
        while len(found) < count:
            found.append(self.fact())
            if len(found) < count and self.random.random() < decoys:
                found.append(self.decoy(found[-1]))
        return found

    def filler(self, count: int) -> Ids:
        return self.random.choice(self.lexicon.filler, count, p=self.lexicon.chances)

    def stated(self, fact: Fact) -> Ids:
        own = self.lexicon
        head = [own.paragraph, own.fact]
        return np.concatenate([head, fact.key, [own.is_], fact.value, [own.end]])

    def asked(self, fact: Fact) -> Ids:
        """The question for a fact; its value is to come."""
        own = self.lexicon
        return np.concatenate([[own.paragraph, own.ask], fact.key, [own.is_]])

    # -- for training -------------------------------------------------------------------------

    def row(self, length: int, density: float, decoys: float) -> tuple[Ids, NDArray[np.bool_]]:
        """A text of ``length`` tokens, a part ``density`` of them facts and as many questions with
        their answers; and which tokens are those of answers."""
        count = max(1, int((length - 1) * density / (2 * self.unit)))
        facts = self.facts(count, decoys)
        places = self.random.random(count)
        # A question is anywhere behind its fact.
        later = places + (1 - places) * self.random.random(count)
        order = np.argsort(np.concatenate([places, later]))
        gaps = np.sort(self.random.integers(1, length - 2 * count * self.unit + 1, 2 * count))
        tokens = self.filler(length)
        tokens[0] = self.lexicon.start
        answers = np.zeros(length, dtype=np.bool_)
        for number, (event, gap) in enumerate(zip(order.tolist(), gaps.tolist(), strict=True)):
            at = gap + number * self.unit
            unit = self.stated(facts[event % count])
            if event >= count:
                unit[1] = self.lexicon.ask
                answers[at + KEY_WORDS + 3 : at + self.unit] = True
            tokens[at : at + self.unit] = unit
        return tokens, answers

    # -- for measuring ------------------------------------------------------------------------

    def haystack(self, length: int, places: dict[int, Fact]) -> Ids:
        """Filler of ``length`` tokens with the facts that begin at these places."""
        tokens = self.filler(length)
        tokens[0] = self.lexicon.start
        for at, fact in places.items():
            tokens[at : at + self.unit] = self.stated(fact)
        return tokens
