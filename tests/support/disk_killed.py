"""A program that kills writers of a disk cache and looks at what they leave.

    python disk_killed.py FOLDER KILLS SEED

Each writer is a fork that stores points and says so in a pipe; it is killed at a random moment.
Everything that it said it stored must be there, as it was written, and nothing else of it but
chunks. Prints the number of points that were reported, and of kills that left a temporary
file.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from pathlib import Path

from disk_scenes import ToyDisk, files, text

from kinfolk.state.disk_files import TEMPORARY


def write(folder: Path, pipe: int, seed: int) -> None:
    """Store points until the end."""
    toy = ToyDisk(folder)
    dice = random.Random(seed)
    while True:
        length, which = dice.randrange(1, 300), dice.randrange(6)
        report = toy.store(text(length, which))
        assert report.outcome in ("stored", "known"), report
        os.write(pipe, f"{length} {which}\n".encode())


def killed(folder: Path, seed: int, dice: random.Random) -> list[tuple[int, int]]:
    """What a writer said before it was killed: some time after it stored up to three points."""
    reading, writing = os.pipe()
    writer = os.fork()
    if writer == 0:
        try:
            os.close(reading)
            write(folder, writing, seed)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = [pipe.readline() for _ in range(dice.randrange(4))]
        time.sleep(dice.uniform(0, 0.03))
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, "the writer failed by itself"
        lines += pipe.readlines()
    return [(int(length), int(which)) for length, which in map(str.split, lines)]


def main(folder: Path, kills: int, seed: int) -> None:
    warnings = []
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
    logging.getLogger("kinfolk").addFilter(warnings.append)
    dice = random.Random(seed)
    reported: set[tuple[int, int]] = set()
    unfinished = 0
    for number in range(kills):
        reported.update(killed(folder, seed + number, dice))
        unfinished += any(TEMPORARY.fullmatch(path.name) for path in files(folder))
        toy = ToyDisk(folder)
        assert not warnings
        assert not any(TEMPORARY.fullmatch(path.name) for path in files(folder))
        for length, which in reported:
            assert toy.restores(text(length, which)) == length, (length, which)
        for point in toy.cache.points():
            which = next(n for n in range(6) if toy.found(text(point.length, n)) == point)
            assert toy.restores(text(point.length, which)) == point.length
    sys.stdout.write(f"{len(reported)} {unfinished}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
