"""Host memory read by kernels: which instruction asks the link for it in the largest requests?

    python benchmarks/kernels/host_reads.py [--json FILE]

A kernel that loads 16 bytes a lane reaches 0.93 of a copy by the driver, whatever its grid, as if
each request of 128 bytes paid for its header. Here the same bytes come by other instructions: loads
that ask the second-level cache for 256 bytes, copies to shared memory that do, and copies of whole
pieces by one thread. Once 256 MiB, and 40 times 2 MiB, as the records that a step misses.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from timing import replay_seconds

from kinfolk_kernels.cuda_source import CudaLaunch, CudaSource

SOURCE = Path(__file__).with_name("host_reads.cu")
STAGES = 4
MUCH, RECORD = 256 << 20, 2 << 20
RECORDS = 40


@dataclass(frozen=True)
class Way:
    """An instruction, as ``host_reads.cu`` numbers them, and how the work is divided."""

    name: str
    number: int
    programs: int
    threads: int
    piece: int

    def launch(self, to: torch.Tensor, home: torch.Tensor, nbytes: int) -> CudaLaunch:
        source = CudaSource.make(SOURCE, "host_reads", {"WAY": self.number})
        shared = STAGES * self.piece if self.number > 1 else 0
        words = (
            ctypes.c_void_p(to.data_ptr()),
            ctypes.c_void_p(home.data_ptr()),
            ctypes.c_longlong(nbytes),
            ctypes.c_int(self.piece),
        )
        keep = (to, home)
        return CudaLaunch(source, self.programs, self.threads, shared, words, to.device, keep)

    def __str__(self) -> str:
        return f"{self.name}, {self.programs} programs, pieces of {self.piece}"


WAYS = tuple(
    Way(name, number, programs, threads, 16 * threads)
    for number, name in enumerate(("loads", "loads, 256 bytes", "copies, 256 bytes"))
    for programs, threads in ((128, 128), (128, 512))
) + tuple(
    Way("bulk", 3, programs, 32, piece)
    for programs, piece in ((32, 16384), (64, 8192), (128, 2048), (128, 4096), (128, 8192))
)


def copy_seconds(run: Callable[[], object]) -> float:
    """Median seconds of ``run``, outside of a graph."""
    times = []
    for _ in range(8):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times[1:])


def measure(way: Way, to: torch.Tensor, home: torch.Tensor) -> tuple[float, float]:
    """Bytes a second of all at once, and of records that come one after the other."""
    to.zero_()
    much = way.launch(to, home, MUCH)
    much.run()
    if not torch.equal(to.cpu(), home):
        raise RuntimeError(f"{way}: other bytes came")
    record = way.launch(to, home, RECORD)

    def records() -> None:
        for _ in range(RECORDS):
            record.run()

    return MUCH / copy_seconds(much.run), RECORDS * RECORD / replay_seconds(records, 10)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    home = torch.randint(0, 256, (MUCH,), dtype=torch.uint8).pin_memory()
    to = torch.zeros(MUCH, dtype=torch.uint8, device="cuda")
    copy = MUCH / copy_seconds(lambda: to.copy_(home, non_blocking=True))
    sys.stdout.write(f"one copy {copy / 1e9:.1f} GB/s; shares of it, at once and by records\n")
    found = {"copy": copy}
    for way in WAYS:
        much, records = measure(way, to, home)
        found |= {f"{way}": much, f"{way}, records": records}
        sys.stdout.write(f"{way!s:44} {much / copy:.3f} {records / copy:.3f}\n")
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
