"""A program that uses a disk cache together with others.

    python disk_shared.py FOLDER LIMIT SECONDS SEED

Stores and reads points at random. Prints how many were stored, read and not found; fails if
anything is read that was not written, or if anything is damaged.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from pathlib import Path

from disk_scenes import ToyDisk, text


def main(folder: Path, limit: int, seconds: float, seed: int) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    toy, dice = ToyDisk(folder, limit=limit), random.Random(seed)
    stored = read = lost = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tokens = text(dice.randrange(1, 300), dice.randrange(4))
        if dice.random() < 0.5:
            stored += toy.store(tokens).outcome == "stored"
        elif toy.restores(tokens):
            read += 1
        else:
            lost += 1
        if dice.random() < 0.05:
            toy.cache.refresh()
    sys.stdout.write(f"{stored} {read} {lost}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
