"""Build the training data: ``python -m pocket.data --out DIR``.

Writes ``train.npy`` (uint16 tokens), ``starts.npy`` (token offsets where a row may begin),
``tokenizer.json``, ``validation.jsonl.gz``, ``held_out.jsonl.gz`` and ``data.json`` (figures, the
licence list). The output depends only on the installed files, the textbook and the seed.

Whole distributions are held out. A held-out file is dropped if it shares more than half of its
normalised lines with the training files: copies would make the result look better than it is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pocket import corpus, dialogue, tokenizer
from pocket.brief import brief
from pocket.corpus import Source
from pocket.textbook.book import Book, write_book
from tokenizers import Tokenizer

log = logging.getLogger("pocket.data")

# Chosen for variety before the first training run: command-line tools, web, plotting, arithmetic,
# optimisers, statistics, small pure-Python packages.
HELD_OUT = (
    "aiohttp", "click", "mpmath", "optax", "patsy", "rich", "seaborn", "simplejson",
    "sortedcontainers", "werkzeug",
)  # fmt: skip
# Scored during training, so their scores are not reported as results.
VALIDATION = ("attrs", "gpytorch", "markdown", "requests", "tabulate", "tensorboard")
SHARED_LINES = 0.5
SHINGLE = 5
SHARED_SHINGLES = 0.6
DIALOGUE_SHARE = 0.04
TOKENIZER_CHARACTERS = 100_000_000
TOKENIZER_TEXTBOOK_CHARACTERS = 6_000_000
# Largest share of textbook documents that may fail to run; more mean a fault in the chapters.
WORST_FAILED = 0.001
# The standard library is a small part of the installed code, so an epoch has its files twice.
REPEATS = {corpus.STANDARD_LIBRARY.name: 2}
BRIEF_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Split:
    train: list[Source]
    validation: list[Source]
    held_out: list[Source]


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def drop_copies(sources: Iterable[Source]) -> list[Source]:
    """Keep a file unless earlier files have most of its sequences of five lines."""
    seen: set[int] = set()
    kept = []
    for source in sources:
        runs = set(shingles(source.lines).tolist())
        if runs and len(runs & seen) > SHARED_SHINGLES * len(runs):
            continue
        seen |= runs
        kept.append(source)
    return kept


def shingles(lines: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One hash for each sequence of ``SHINGLE`` lines, or for the whole file if it is shorter."""
    count = max(1, len(lines) - SHINGLE + 1)
    mixed = np.zeros(count, dtype=np.uint64)
    for offset in range(min(SHINGLE, len(lines))):
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + lines[offset : offset + count]
    return mixed


def drop_known(sources: list[Source], train: Iterable[Source]) -> list[Source]:
    """Drop the files that share more than ``SHARED_LINES`` of their lines with training files."""
    known: set[int] = set()
    for source in train:
        known.update(source.lines.tolist())
    return [source for source in sources if share(source.lines, known) <= SHARED_LINES]


def share(lines: NDArray[np.uint64], known: set[int]) -> float:
    """The fraction of ``lines`` that is in ``known``."""
    return sum(line in known for line in lines.tolist()) / max(1, len(lines))


def split(sources: Sequence[Source]) -> Split:
    """Hold out whole distributions; drop copies inside each part, and copies of training files."""
    held, checked = set(map(canonical, HELD_OUT)), set(map(canonical, VALIDATION))
    groups: dict[str, list[Source]] = {"train": [], "validation": [], "held_out": []}
    for source in sources:
        name = canonical(source.distribution)
        kind = "held_out" if name in held else "validation" if name in checked else "train"
        groups[kind].append(source)
    train = drop_copies(groups["train"])
    return Split(
        train,
        drop_known(drop_copies(groups["validation"]), train),
        drop_known(drop_copies(groups["held_out"]), train),
    )


def encode_documents(plain: Tokenizer, sources: Sequence[Source]) -> list[list[NDArray[np.uint16]]]:
    """Tokens of each file, in pieces that begin at its top-level functions and classes.

    A piece ends with a line end and the next begins with a word, so the pieces together encode to
    exactly the tokens of the whole file.
    """
    pieces: list[str] = []
    counts = []
    for source in sources:
        bounds = [0, *source.starts, len(source.text)]
        parts = [source.text[a:b] for a, b in pairwise(bounds)]
        pieces += parts
        counts.append(len(parts))
    encoded = encode(plain, pieces)
    documents, at = [], 0
    for count in counts:
        documents.append(encoded[at : at + count])
        at += count
    return documents


def encode(tokens: Tokenizer, texts: list[str]) -> list[NDArray[np.uint16]]:
    found: list[NDArray[np.uint16]] = []
    for first in range(0, len(texts), 20_000):
        batch = tokens.encode_batch_fast(texts[first : first + 20_000], add_special_tokens=False)
        found += [np.array(item.ids, dtype=np.uint16) for item in batch]
    return found


def sample(texts: Sequence[str], characters: int, seed: int) -> Iterator[str]:
    """Random texts with at most ``characters`` characters in all."""
    for index in np.random.default_rng(seed).permutation(len(texts)):
        characters -= len(texts[index])
        if characters < 0:
            return
        yield texts[index]


def briefs(train: Sequence[Source], seed: int, workers: int) -> list[Source]:
    """Second versions, with short docstrings, of a random part of the files."""
    chosen = np.random.default_rng(seed).random(len(train)) < BRIEF_SHARE
    picked = [source for source, taken in zip(train, chosen, strict=True) if taken]
    with ProcessPoolExecutor(workers) as pool:
        found = pool.map(brief, picked, chunksize=64)
        return [source for source in found if source is not None]


def dialogues(train: Sequence[Source], characters: float, seed: int, workers: int) -> list[str]:
    """Dialogues from random functions of all files, with about ``characters`` characters in all."""
    choose = random.Random(seed)
    with ProcessPoolExecutor(workers) as pool:
        found = [e for part in pool.map(dialogue.examples, train, chunksize=64) for e in part]
    choose.shuffle(found)
    texts: list[str] = []
    total = 0
    for example in found:
        if total >= characters:
            break
        texts.append(dialogue.render(example, choose))
        total += len(texts[-1])
    return texts


def lay_out(
    documents: list[list[NDArray[np.uint16]]], end: int, seed: int
) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """All documents in random order, each with ``end`` behind it, and the row starts.

    Returns tokens [n] and the sorted token offsets where a row may begin.
    """
    order = np.random.default_rng(seed).permutation(len(documents))
    parts: list[NDArray[np.uint16]] = []
    starts: list[int] = []
    at = 0
    closing = np.array([end], dtype=np.uint16)
    for index in order:
        for piece in documents[index]:
            starts.append(at)
            parts.append(piece)
            at += len(piece)
        parts.append(closing)
        at += 1
    return np.concatenate(parts), np.array(starts, dtype=np.int64)


def write_texts(file: Path, sources: Iterable[Source]) -> None:
    with gzip.open(file, "wt", encoding="utf-8") as out:
        for source in sources:
            entry = {
                "distribution": source.distribution,
                "path": source.path,
                "text": source.text,
            }
            out.write(json.dumps(entry) + "\n")


@dataclass(frozen=True, slots=True)
class Text:
    distribution: str
    text: str


def read_texts(file: Path, limit: int | None = None) -> list[Text]:
    """Texts in a shuffled order that mixes the distributions; about ``limit`` bytes in all."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    texts = [Text(entry["distribution"], entry["text"]) for entry in entries]
    random.Random(0).shuffle(texts)
    sizes = np.cumsum([len(entry.text.encode()) for entry in texts])
    return texts if limit is None else texts[: int(np.searchsorted(sizes, limit)) + 1]


def describe(sources: Sequence[Source]) -> dict[str, Any]:
    sizes: Counter[str] = Counter()
    for source in sources:
        sizes[source.distribution] += len(source.text.encode())
    return {"files": len(sources), "bytes": sum(sizes.values()), "distributions": dict(sizes)}


def check_book(book: Book) -> None:
    """Raise ``ValueError`` if more than ``WORST_FAILED`` of the textbook's documents failed."""
    if len(book.failed) > WORST_FAILED * len(book.texts):
        raise ValueError(
            f"{len(book.failed)} of {len(book.texts)} documents of the textbook do not run; the "
            f"first is\n{book.failed[0]}"
        )


def learn_tokenizer(train: Sequence[Source], book: Book, seed: int, vocabulary: int) -> Tokenizer:
    """Train a tokenizer on random files and random documents of the textbook."""
    files = sample([source.text for source in train], TOKENIZER_CHARACTERS, seed)
    forms = sample(book.texts, TOKENIZER_TEXTBOOK_CHARACTERS, seed)
    return tokenizer.train(chain(files, forms), vocabulary)


def build(
    out: Path,
    seed: int,
    workers: int,
    vocabulary: int = tokenizer.VOCABULARY,
    book: Book | None = None,
) -> None:
    """Read and split the corpus, train the tokenizer, encode the documents and write the files.

    ``book`` is the textbook; without it, the textbook is generated from its chapters.
    """
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    admissions, places = corpus.installed()
    parts = split(corpus.read(places, workers))
    log.info("%d files read and split after %.0f s", len(places), time.monotonic() - began)
    characters = sum(len(source.text) for source in parts.train)
    # These fork, which is unsafe once the tokenizer has started its threads.
    turns_text = dialogues(parts.train, DIALOGUE_SHARE * characters, seed, workers)
    shortened = briefs(parts.train, seed, workers)
    book = book or write_book(seed, workers)
    check_book(book)
    log.info("%d documents of the textbook after %.0f s", len(book.texts), time.monotonic() - began)
    plain = learn_tokenizer(parts.train, book, seed, vocabulary)
    special = tokenizer.with_specials(plain)
    special.save(str(out / "tokenizer.json"))
    log.info("tokenizer trained after %.0f s", time.monotonic() - began)
    learned = [source for source in parts.train for _ in range(REPEATS.get(source.distribution, 1))]
    documents = encode_documents(plain, learned + shortened)
    turns = encode(special, turns_text)
    forms = encode(plain, book.texts + book.recall)
    end = tokenizer.end_of_text(special)
    tokens, starts = lay_out(documents + [[whole] for whole in turns + forms], end, seed)
    np.save(out / "train.npy", tokens)
    np.save(out / "starts.npy", starts)
    write_texts(out / "validation.jsonl.gz", parts.validation)
    write_texts(out / "held_out.jsonl.gz", parts.held_out)
    figures = {
        "tokens": len(tokens),
        "starts": len(starts),
        "dialogues": len(turns),
        "briefs": len(shortened),
        "textbook": {
            "documents": len(book.texts),
            "recall": len(book.recall),
            "failed": len(book.failed),
            "characters": sum(map(len, book.texts + book.recall)),
            "tokens": sum(map(len, forms)),
        },
        "seconds": round(time.monotonic() - began, 1),
        "train": describe(parts.train),
        "validation": describe(parts.validation),
        "held_out": describe(parts.held_out),
        "licences": [admission.to_json() for admission in admissions],
    }
    (out / "data.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    log.info("%d tokens written after %.0f s", len(tokens), time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    build(arguments.out, arguments.seed, arguments.workers)


if __name__ == "__main__":
    main()
