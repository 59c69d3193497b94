"""Experts in page-locked host memory: how fast kernels read them there, and how fast they come.

    python benchmarks/kernels/far.py [--rows 1 4 16 64 2048] [--shape NAME] [--json FILE]
    python benchmarks/kernels/far.py --fetch 128x4096 64x4096 ...     only fetch, as it is divided
    TRITON_INTERPRET=1 python benchmarks/kernels/far.py --tiny        to try the script, without GPU

Every line has what was predicted beside the outcome. Rates count bytes of the link, in GB/s, and as
a share of one large copy in the same run. Five questions:

1. How fast does ``fetch`` bring 1, 8 and 64 records, and what does it cost where nothing is missed?
2. How fast do the products read experts where they are, for 1 to 2048 rows? The bytes are those of
   the distinct experts, the time is that of the op with all of them far, and with all of them near.
   How fast is it to land them first, with the products behind?
3. Do rows that chose the same experts cost the link more than one row? By pairs, and by groups.
4. Does memory that the driver registered differ from memory of torch's allocator?
5. Do huge pages make a difference?

Below 0.7 of a copy, reading in place is worse than fetching first into spare bays.

A step has a fetch in each of its layers, so a graph has 40, and its start adds little to one.
``--fetch`` times 0, 1, 2 and 8 missed records of the eight experts that a row chose, for programs x
words of a piece (x warps of a program).
"""

from __future__ import annotations

import argparse
import json
import mmap
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from experts import SHAPES, Shape, random_stack
from timing import replay_seconds

from kinfolk_kernels.experts.op import ExpertsArguments, FarExperts
from kinfolk_kernels.experts.triton_backend import PAIRED_ROWS, experts, supports
from kinfolk_kernels.fetch import triton_backend as fetching
from kinfolk_kernels.fetch.op import FetchArguments
from kinfolk_kernels.fetch.triton_backend import fetch
from kinfolk_kernels.int8_rows import with_int8
from kinfolk_kernels.land.op import LandArguments
from kinfolk_kernels.land.triton_backend import land
from kinfolk_kernels.linear.prepare import int8_rows
from kinfolk_kernels.planes import PlanesStack
from kinfolk_kernels.row_forms import worth_int8

TINY = Shape(6, 64, 64, "Q4_0", "Q8_0", "softmax", "silu", top_k=2)
RECORD_BYTES = 256
"""A record is a multiple of so many bytes."""

ENOUGH = 0.7
"""The share of a copy from which on reading in place is worth it."""

MADV_HUGEPAGE, MADV_NOHUGEPAGE = 14, 15
MAPPED = 2
"""cudaHostRegisterMapped."""

PREDICTED = {
    "fetch 1": 0.84,
    "fetch": 0.91,
    "pairs": 0.75,
    "groups": 0.50,
    "landing": 0.90,
    "same experts": 1.05,
    "registered": 1.00,
    "huge pages": 1.00,
}
"""Shares of a copy, of ``landing`` without the products behind it; of ``same experts`` the time of
R rows over that of one, and of the last two the rate over that of pinned memory of torch's
allocator. The reasons are in NOTES.md."""

IDLE_MICROSECONDS = 2.5
"""Predicted for a fetch that fetches nothing."""

LAYERS = 40
"""Fetches of a step."""

MISSED = (1, 8, 64)
"""Records that a fetch misses."""

FEW_MISSED = (0, 1, 2, 8)
"""The same for ``--fetch``, of the experts of one row."""


@dataclass
class Report:
    """Prints each outcome beside its prediction, and keeps them."""

    copy: float = 1.0
    results: dict[str, dict[str, float]] = field(default_factory=dict)

    def copied(self, nbytes: int, rate: float) -> None:
        """Of one large copy, which all later rates are compared with."""
        self.copy = rate
        self.rate(f"one copy of {nbytes >> 20} MiB", nbytes, nbytes / rate, 1.0)

    def rate(
        self, what: str, nbytes: float, seconds: float, predicted: float, near: float = 0.0
    ) -> None:
        """``near``: the seconds of the same with all experts near, if that was measured."""
        rate = nbytes / seconds
        share = rate / self.copy
        self.results[what] = {"seconds": seconds, "rate": rate, "share": share, "near": near}
        self.results[what]["predicted"] = predicted
        beside = f"; all near {near * 1e6:.1f} us" if near else ""
        self._say(
            f"{what:44} {seconds * 1e6:9.1f} us {rate / 1e9:6.1f} GB/s, "
            f"{share:.2f} of a copy (predicted {predicted:.2f}){beside}"
        )

    def ratio(self, what: str, found: float, predicted: float, unit: str = "x") -> None:
        self.results[what] = {"found": found, "predicted": predicted}
        self._say(f"{what:44} {found:9.2f} {unit} (predicted {predicted:.2f})")

    def _say(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def seconds(step: Callable[[], None], device: str) -> float:
    """Seconds of a step: of a replay on a GPU, of one run elsewhere."""
    if device == "cuda":
        return replay_seconds(step, 10)
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


# -- memory ---------------------------------------------------------------------------------------


@contextmanager
def home(size: int, kind: str, device: str) -> Iterator[torch.Tensor]:
    """uint8 [size] of host memory that the device reads: of torch's allocator ("torch"), or a
    mapping that the driver registers, in small or huge pages."""
    if kind == "torch":
        yield torch.empty(size, dtype=torch.uint8, pin_memory=device == "cuda")
        return
    mapping = mmap.mmap(-1, size)
    mapping.madvise(MADV_HUGEPAGE if kind == "huge" else MADV_NOHUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    memory.zero_()
    if device == "cuda":
        code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), size, MAPPED))
        if code:
            raise SystemExit(f"the driver registered no {size} bytes: error {code}")
    try:
        yield memory
    finally:
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


def planes_of(stack: PlanesStack) -> dict[str, torch.Tensor]:
    names = ("q", "high", "scales", "supers")
    return {name: plane for name in names if (plane := getattr(stack, name)) is not None}


def record_of(stacks: Sequence[PlanesStack]) -> int:
    """Bytes of the planes of one expert."""
    planes = (plane for stack in stacks for plane in planes_of(stack).values())
    size = sum(-(-plane[0].nbytes // 16) * 16 for plane in planes)
    return -(-size // RECORD_BYTES) * RECORD_BYTES


def views(stacks: Sequence[PlanesStack], arena: torch.Tensor) -> list[PlanesStack]:
    """Stacks like these, over uint8 [bays, record]."""
    place, found = 0, []
    for stack in stacks:
        planes = {}
        for name, plane in planes_of(stack).items():
            part = arena[:, place : place + plane[0].nbytes].view(plane.dtype)
            planes[name] = part.unflatten(1, tuple(plane.shape[1:]))
            place += -(-plane[0].nbytes // 16) * 16
        found.append(replace(stack, **planes))
    return found


@dataclass
class Layer:
    """A layer with all experts near, and its records at home."""

    shape: Shape
    near: ExpertsArguments[PlanesStack]
    homes: torch.Tensor
    far: FarExperts[PlanesStack]

    @property
    def record(self) -> int:
        return int(self.homes.shape[1])

    @staticmethod
    def make(shape: Shape, stacks: Sequence[PlanesStack], memory: torch.Tensor) -> Layer:
        homes = memory.view(shape.experts, -1)
        far = views(stacks, homes)
        for there, here in zip(far, stacks, strict=True):
            for name, plane in planes_of(here).items():
                getattr(there, name).copy_(plane)
        device = stacks[0].device
        near = ExpertsArguments(
            *stacks,
            torch.arange(shape.experts, device=device),
            shape.activation,
            shape.top_k,
            torch.float16,
            rows=torch.zeros(1, dtype=torch.int32, device=device),
        )
        return Layer(shape, near, homes, FarExperts(*far))

    def all_far(self) -> ExpertsArguments[PlanesStack]:
        """The layer without a near bay."""
        device = self.near.bay_of_expert.device
        none = torch.empty(0, self.record, dtype=torch.uint8, device=device)
        stacks = (self.near.gate, self.near.up, self.near.down)
        gate, up, down = views(stacks, none)
        made = replace(self.near, gate=gate, up=up, down=down, far=self.far)
        verdict = supports(made)
        if not verdict:
            raise SystemExit(f"the kernels refuse far experts: {verdict.reason}")
        return made

    def landing(self) -> tuple[ExpertsArguments[PlanesStack], LandArguments]:
        """The layer without a near bay, with its experts in landing bays; and what brings them."""
        device, count = self.near.bay_of_expert.device, self.shape.experts
        records = torch.empty(count, self.record, dtype=torch.uint8, device=device)
        landed = torch.full((count,), -1, device=device)
        far = self.all_far()
        stacks = FarExperts(*views((self.near.gate, self.near.up, self.near.down), records))
        made = replace(far, far=stacks, bay_of_expert=landed)
        assert self.near.rows is not None
        home = self.near.bay_of_expert
        return made, LandArguments(self.homes, records, home, landed, self.near.rows, 0)


def random_stacks(shape: Shape, device: str) -> list[PlanesStack]:
    up = (shape.upper, shape.experts, shape.channels, shape.width, device)
    down = (shape.lower, shape.experts, shape.width, shape.channels, device)
    return [random_stack(*up), random_stack(*up), random_stack(*down)]


# -- measurements ---------------------------------------------------------------------------------


def copy_rate(memory: torch.Tensor, device: str) -> float:
    """Bytes a second of one large copy from host memory."""
    target = torch.empty_like(memory, device=device)
    return memory.numel() / seconds(lambda: target.copy_(memory, non_blocking=True), device)


def fetched(layer: Layer, missed: int, device: str) -> float:
    """Seconds of a fetch of ``missed`` records of the experts that a row chose. Two choices take
    turns with the same bays and share what is not missed, so that each misses the rest."""
    count, chosen = layer.shape.experts, max(missed, layer.shape.top_k)
    state = FetchArguments(
        torch.empty(chosen, layer.record, dtype=torch.uint8, device=device),
        layer.homes,
        chosen + torch.arange(count, device=device),
        torch.full((chosen,), -1, dtype=torch.int32, device=device),
        torch.zeros(count, device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
        torch.zeros(3, dtype=torch.int64, device=device),
        torch.full((1,), 1, dtype=torch.int32, device=device),
    )
    kept = torch.arange(chosen - missed)
    turns = [
        torch.cat((kept, chosen - missed + turn * missed + torch.arange(missed)))[None].to(device)
        for turn in range(2)
    ]

    def both() -> None:
        for ids in turns:
            fetch(state, ids)

    both()
    state.traffic.zero_()
    pairs = LAYERS // 2 if device == "cuda" else 1
    taken = seconds(lambda: [both() for _ in range(pairs)], device) / (2 * pairs)
    hits, came, stay = state.traffic.tolist()
    if stay or came * (chosen - missed) != hits * missed:
        raise AssertionError(f"of {missed} records: {hits} near, {came} fetched, {stay} stay far")
    return taken


def products(
    layer: ExpertsArguments[PlanesStack],
    rows: int,
    device: str,
    same: bool = False,
    bring: LandArguments | None = None,
) -> tuple[float, float]:
    """Seconds of the op for ``rows`` rows, and the experts that they chose; ``same``: all of them
    the first ones; ``bring``: the experts land first."""
    generator = torch.Generator().manual_seed(rows)
    scores = torch.rand(rows, layer.count, generator=generator)
    ids = scores.argsort(1)[:, : layer.top_k].contiguous()
    if same:
        ids[:] = torch.arange(layer.top_k)
    layer.rows.fill_(rows)
    distinct = len(ids.unique())
    ids, weights = ids.to(device), torch.rand(rows, layer.top_k, generator=generator).to(device)
    x = torch.randn(rows, layer.width, generator=generator).half().to(device)
    if worth_int8(x):
        # The norm before also stores few rows as int8.
        x = with_int8(x, int8_rows(x))

    def step() -> None:
        if bring is not None:
            land(bring, ids)
        experts(layer, x, ids, weights)

    return seconds(step, device), distinct


def measure_fetch(
    layer: Layer, report: Report, device: str, title: str, factor: float, missed: Sequence[int]
) -> None:
    most = layer.shape.experts // 2
    for count in sorted({min(count, most) for count in missed}):
        taken = fetched(layer, count, device)
        if count == 0:
            report.ratio(f"{title}: fetch of nothing", taken * 1e6, IDLE_MICROSECONDS, "us")
        else:
            share = PREDICTED["fetch 1" if count == 1 else "fetch"] * factor
            report.rate(f"{title}: fetch of {count}", count * layer.record, taken, share)


@dataclass(frozen=True)
class Division:
    """How ``fetch`` divides the copying: programs, words of a piece, and warps of a program."""

    programs: int
    piece: int
    warps: int

    @staticmethod
    def parse(text: str) -> Division:
        """PROGRAMSxWORDS or PROGRAMSxWORDSxWARPS."""
        parts = [int(part) for part in text.split("x")]
        if len(parts) not in (2, 3) or min(parts) < 1:
            raise argparse.ArgumentTypeError(f"{text}: not PROGRAMSxWORDS or PROGRAMSxWORDSxWARPS")
        programs, piece, warps = (*parts, fetching.FETCH_WARPS)[:3]
        return Division(programs, piece, warps)

    def __str__(self) -> str:
        return f"{self.programs}x{self.piece}x{self.warps}"

    @contextmanager
    def used(self) -> Iterator[None]:
        names = ("FETCH_PROGRAMS", "PIECE_WORDS", "FETCH_WARPS")
        before = [getattr(fetching, name) for name in names]
        mine = (self.programs, self.piece, self.warps)
        try:
            for name, value in zip(names, mine, strict=True):
                setattr(fetching, name, value)
            yield
        finally:
            for name, value in zip(names, before, strict=True):
                setattr(fetching, name, value)


def measure_products(layer: Layer, rows: Sequence[int], report: Report, device: str) -> None:
    far = layer.all_far()
    landing, bring = layer.landing()
    for count in rows:
        way = "pairs" if count <= PAIRED_ROWS else "groups"
        near, distinct = products(layer.near, count, device)
        taken, _ = products(far, count, device)
        what = f"{count} rows, {way}, {distinct} experts: in place"
        report.rate(what, distinct * layer.record, taken, PREDICTED[way], near)
        taken, _ = products(landing, count, device, bring=bring)
        copied = distinct * layer.record / report.copy
        share = copied / (copied / PREDICTED["landing"] + near)
        what = f"{count} rows, {way}: landing, then products"
        report.rate(what, distinct * layer.record, taken, share, near)


def measure_same(layer: Layer, report: Report, device: str, most: int) -> None:
    """Rows that all chose the same experts, in one launch."""
    far = layer.all_far()
    for one, several in ((1, (2, 4, 16, 32)), (64, (128, 256))):
        first, _ = products(far, one, device, same=True)
        for rows in several:
            if rows <= most:
                taken, _ = products(far, rows, device, same=True)
                what = f"{rows} rows of the same experts: time of {one}"
                report.ratio(what, taken / first, PREDICTED["same experts"])


def measure_divisions(options: argparse.Namespace, report: Report, device: str) -> None:
    """What ``--fetch`` asks for."""
    shape, stacks = options.shape, random_stacks(options.shape, device)
    size = shape.experts * record_of(stacks)
    with home(size, "torch", device) as memory:
        layer = Layer.make(shape, stacks, memory)
        report.copied(size, copy_rate(memory, device))
        for way in options.fetch:
            with way.used():
                measure_fetch(layer, report, device, str(way), 1.0, FEW_MISSED)


def measure_all(options: argparse.Namespace, report: Report, device: str) -> None:
    """What the five questions ask for."""
    shape, stacks = options.shape, random_stacks(options.shape, device)
    size = shape.experts * record_of(stacks)
    rates = {}
    for kind in ("torch", "small", "huge"):
        with home(size, kind, device) as memory:
            layer = Layer.make(shape, stacks, memory)
            rates[kind] = copy_rate(memory, device)
            if kind == "torch":
                report.copied(size, rates[kind])
                measure_fetch(layer, report, device, "pinned by torch", 1.0, (0, *MISSED))
                measure_products(layer, options.rows, report, device)
                measure_same(layer, report, device, max(options.rows))
            else:
                title = f"registered, {kind} pages"
                factor = PREDICTED["huge pages" if kind == "huge" else "registered"]
                report.ratio(f"{title}: rate of a copy", rates[kind] / rates["torch"], factor)
                taken, distinct = products(layer.all_far(), options.rows[0], device)
                what = f"{title}: {options.rows[0]} rows in place"
                report.rate(what, distinct * layer.record, taken, PREDICTED["pairs"] * factor)
                measure_fetch(layer, report, device, title, factor, MISSED)
            del layer, memory
    shares = {what: r["share"] for what, r in report.results.items() if "in place" in what}
    slow = [what for what, share in shares.items() if share < ENOUGH]
    sys.stdout.write(f"below {ENOUGH} of a copy: {'; '.join(slow) or 'none'}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64, 2048])
    parser.add_argument("--shape", choices=SHAPES, default="35B-A3B")
    parser.add_argument("--fetch", type=Division.parse, nargs="+", metavar="PROGRAMSxWORDS")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, to try the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cpu" if options.tiny else "cuda"
    options.shape = TINY if options.tiny else SHAPES[options.shape]
    options.rows = [1, 2] if options.tiny else options.rows
    report = Report()
    (measure_divisions if options.fetch else measure_all)(options, report, device)
    if options.json:
        options.json.write_text(json.dumps(report.results, indent=1))


if __name__ == "__main__":
    main()
