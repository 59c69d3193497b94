"""Write beginnings of functions and classes, which a drafter's trainer lets the pocket model
continue: ``python -m pocket.beginnings --out DIR --count 600``.

``held_out.jsonl`` is from the distributions that were held out when the model was trained,
``train.jsonl`` from the others, without those that validated it.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from pocket.corpus import Place, Source, installed, load
from pocket.data import HELD_OUT, VALIDATION, canonical

log = logging.getLogger("pocket.beginnings")

CHARACTERS = (40, 400)
"""Fewest and most characters of a beginning."""


def beginning(source: Source, random: random.Random) -> str:
    """A random top-level function or class of a file, cut at the end of a random line."""
    start = random.choice(source.starts)
    end = start + random.randint(*CHARACTERS)
    return source.text[start : source.text.rfind("\n", start, end) + 1]


def beginnings(places: Iterable[Place], seed: int) -> Iterator[str]:
    """One beginning of each of the files that are code, in a random order."""
    order, draw = sorted(places, key=lambda place: place.path), random.Random(seed)
    draw.shuffle(order)
    for place in order:
        source = load(place)
        if source is not None and source.starts:
            text = beginning(source, draw)
            if len(text) >= CHARACTERS[0]:
                yield text


def write(file: Path, places: Iterable[Place], count: int, seed: int) -> int:
    texts = [text for text, _ in zip(beginnings(places, seed), range(count), strict=False)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return len(texts)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--held-out", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    _, places = installed()
    held_out = [place for place in places if canonical(place.distribution) in HELD_OUT]
    unseen = HELD_OUT + VALIDATION
    train = [place for place in places if canonical(place.distribution) not in unseen]
    for name, found, count in (
        ("train", train, options.count),
        ("held_out", held_out, options.held_out),
    ):
        written = write(options.out / f"{name}.jsonl", found, count, options.seed)
        log.info("%s: %d beginnings", name, written)


if __name__ == "__main__":
    main()
