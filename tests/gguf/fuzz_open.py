"""Opens mutations of a file and touches everything in them; run as a program by the fuzz test.

``python fuzz_open.py FILE SEED COUNT SCRATCH`` prints a JSON object: how many mutations were
opened and refused, and by how many bytes resident memory grew. Anything but a one-line
ModelFormatError escapes and fails the run; a single mutation may take ten seconds.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
from pathlib import Path

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.file import GGUFFile

LIMIT_SECONDS = 10


def mutate(data: bytearray, header: int, rng: random.Random) -> bytearray:
    """One of: flipped bytes, a cut, bytes moved within the header, absurd integers."""
    kind = rng.randrange(5)
    if kind == 0:
        for _ in range(rng.choice((1, 2, 8, 64))):
            data[rng.randrange(header)] = rng.randrange(256)
    elif kind == 1:
        del data[rng.randrange(len(data)) :]
    elif kind == 2:
        start, size = rng.randrange(header), rng.randrange(1, 200)
        piece = data[start : start + size]
        place = rng.randrange(header)
        data[place : place + rng.choice((0, size))] = piece
    elif kind == 3:
        start = rng.randrange(header)
        del data[start : start + rng.randrange(1, 64)]
    else:
        place = rng.randrange(header - 8)
        value = rng.choice((0, 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1, rng.randrange(2**20)))
        data[place : place + 8] = value.to_bytes(8, "little")
    return data


def touch(path: Path) -> None:
    """Open the file and use every value and every tensor of it."""
    with GGUFFile.open(path) as file:
        for key in file.metadata:
            value = file.metadata.value(key)
            value.describe()
            if value.is_array:
                list(value.content)
        for name in file.inventory:
            file.inventory.bytes(name).sum()


def main() -> None:
    source, seed, count, scratch = Path(sys.argv[1]), *map(int, sys.argv[2:4]), Path(sys.argv[4])
    original = source.read_bytes()
    with GGUFFile.open(source) as file:
        header = min(info.offset for info in file.inventory.values())
    touch(source)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rng = random.Random(seed)
    opened = refused = 0
    for _ in range(count):
        scratch.write_bytes(mutate(bytearray(original), header, rng))
        signal.alarm(LIMIT_SECONDS)
        try:
            touch(scratch)
            opened += 1
        except ModelFormatError as error:
            if "\n" in str(error):
                raise
            refused += 1
        signal.alarm(0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    sys.stdout.write(json.dumps({"opened": opened, "refused": refused, "grown": grown}))


if __name__ == "__main__":
    main()
