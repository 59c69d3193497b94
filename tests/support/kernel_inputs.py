"""Fixtures of kernel tests on the CPU and on the GPU: steps without an engine, and error bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch

from kinfolk_kernels.accept_drafts.op import NO_ROW
from kinfolk_kernels.packing import pack
from kinfolk_kernels.place_drafts.op import DraftedRows, StoredDrafts
from kinfolk_kernels.planes import LAYOUTS, Activations, Planes
from kinfolk_kernels.row_layout import KNOWN_DRAFT, RowLayout, Segment
from kinfolk_kernels.rows import CHUNK_POSITIONS

# -- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """The part of one sequence in a step: ``rows`` rows after ``context`` committed positions.

    ``parents`` are indices inside the part, ``None`` = a chain. ``drafted`` rows may be rejected.
    """

    context: int
    rows: int
    drafted: bool = False
    parents: tuple[int, ...] | None = None

    @cached_property
    def ups(self) -> tuple[int, ...]:
        return tuple(range(-1, self.rows - 1)) if self.parents is None else self.parents

    def path(self, row: int) -> list[int]:
        """Rows from the root to ``row``."""
        if self.parents is None:
            return list(range(row + 1))
        found = []
        while row >= 0:
            found.append(row)
            row = self.ups[row]
        return found[::-1]


@dataclass(frozen=True)
class Table:
    blocks: torch.Tensor
    chunks: torch.Tensor
    length: torch.Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """A step: the fields that ops read, and the parts that it was built from."""

    positions: torch.Tensor
    sequence_of_row: torch.Tensor
    parent_row: torch.Tensor
    limit: torch.Tensor
    ancestors: torch.Tensor
    arena_row: torch.Tensor
    write_row: torch.Tensor
    slot_of_sequence: torch.Tensor
    store_rows: torch.Tensor
    store_slots: torch.Tensor
    layout: RowLayout
    parts: tuple[Part, ...]
    table: Table
    blocks: int

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.layout.segments

    def span(self, sequence: int) -> slice:
        return slice(self.segments[sequence].start, self.segments[sequence].stop)


class Steps:
    """Builds parts, and steps from them."""

    @staticmethod
    def certain(context: int, rows: int) -> Part:
        return Part(context, rows)

    @staticmethod
    def chain(context: int, rows: int) -> Part:
        return Part(context, rows, drafted=True)

    @staticmethod
    def tree(context: int, parents: Sequence[int]) -> Part:
        return Part(context, len(parents), drafted=True, parents=tuple(parents))

    @staticmethod
    def random_tree(context: int, rows: int, seed: int = 0) -> Part:
        generator = torch.Generator().manual_seed(seed)
        ups = [int(torch.randint(row, (), generator=generator)) for row in range(1, rows)]
        return Steps.tree(context, [-1, *ups])

    @staticmethod
    def build(
        *parts: Part,
        slots: Sequence[int] | None = None,
        places: int | None = None,
        stores: Sequence[tuple[int, int]] = (),
    ) -> Rows:
        """A step of ``parts``. ``places`` seeds the order of allocated blocks, ``None`` = in order;
        ``stores`` are (row, slot); by default slots count down from the number of parts."""
        return _build(parts, slots or range(len(parts), 0, -1), places, stores)


def _build(
    parts: Sequence[Part],
    slots: Sequence[int],
    places: int | None,
    stores: Sequence[tuple[int, int]],
) -> Rows:
    tables, blocks = _tables(parts, places)
    columns: dict[str, list[int]] = {
        name: [] for name in ("position", "sequence", "parent", "limit", "seen", "arena", "write")
    }
    segments = []
    for index, (part, slot) in enumerate(zip(parts, slots, strict=True)):
        start = len(columns["position"])
        segments.append(Segment(index, slot, start, start + part.rows, part.context, part.drafted))
        for row in range(part.rows):
            _append(columns, part, row, start, index, tables[index])
    width = max(map(len, tables)) + 1  # one more than needed: padding that must not be read
    table = Table(
        torch.tensor([row + [0] * (width - len(row)) for row in tables], dtype=torch.int32),
        torch.tensor(
            [[*range(len(row))] + [0] * (width - len(row)) for row in tables], dtype=torch.int32
        ),
        torch.tensor(list(map(len, tables)), dtype=torch.int32),
        tuple(map(len, tables)),
    )
    tensors = {name: torch.tensor(values, dtype=torch.int64) for name, values in columns.items()}
    return Rows(
        tensors["position"],
        tensors["sequence"],
        tensors["parent"],
        tensors["limit"],
        tensors["seen"],
        tensors["arena"],
        tensors["write"][None],
        torch.tensor(list(slots)),
        torch.tensor([row for row, _ in stores], dtype=torch.int64),
        torch.tensor([slot for _, slot in stores], dtype=torch.int64),
        RowLayout.of(segments, tensors["parent"]),
        tuple(parts),
        table,
        blocks,
    )


def _tables(parts: Sequence[Part], places: int | None) -> tuple[list[list[int]], int]:
    """Blocks of each part, without block 0, and the number of blocks, some of which are free."""
    counts = [-(-(part.context + part.rows) // CHUNK_POSITIONS) for part in parts]
    total = sum(counts) + 3
    order = list(range(1, total + 1))
    if places is not None:
        generator = torch.Generator().manual_seed(places)
        order = (torch.randperm(total, generator=generator) + 1).tolist()
    tables = []
    for count in counts:
        tables.append(order[:count])
        order = order[count:]
    return tables, total + 1


def _append(
    columns: dict[str, list[int]], part: Part, row: int, start: int, index: int, blocks: list[int]
) -> None:
    path = part.path(row)
    position = part.context + len(path) - 1
    up = part.ups[row]
    arena = -1
    if part.parents is not None:
        arena = sum(place >= 0 for place in columns["arena"])
    columns["position"].append(position)
    columns["sequence"].append(index)
    columns["parent"].append(start + up if up >= 0 else -1)
    columns["limit"].append(position if arena < 0 else part.context - 1)
    seen = sum(1 << ancestor for ancestor in path) if arena >= 0 else 0
    columns["seen"].append(seen - (1 << 64) if seen >> 63 else seen)
    columns["arena"].append(arena)
    place = blocks[position // CHUNK_POSITIONS] * CHUNK_POSITIONS + position % CHUNK_POSITIONS
    columns["write"].append(place if arena < 0 else row % CHUNK_POSITIONS)


@pytest.fixture(scope="session")
def steps() -> type[Steps]:
    return Steps


# -- keys and values ------------------------------------------------------------------------------


@dataclass
class Memory:
    """Keys and values in blocks and in the arena, and those of every sequence in order."""

    pools: tuple[torch.Tensor, torch.Tensor]
    arenas: tuple[torch.Tensor, torch.Tensor]
    sequences: list[tuple[torch.Tensor, torch.Tensor]]
    """Keys and values of each sequence [context + rows, heads, dim], with its rows at the end."""


class Memories:
    """Stores keys and values of sequences; all other memory is NaN."""

    @staticmethod
    def fill(
        rows: Rows,
        heads: int,
        draw: Callable[..., torch.Tensor],
        dims: tuple[int, int],
        dtype: torch.dtype = torch.float32,
    ) -> Memory:
        """Keys and values of ``dims`` numbers for the context and the rows of each sequence."""
        sizes = [part.context + part.rows for part in rows.parts]
        sequences = [
            (draw(n, heads, dims[0]).to(dtype), draw(n, heads, dims[1]).to(dtype)) for n in sizes
        ]
        return Memories.place(rows, sequences)

    @staticmethod
    def place(rows: Rows, sequences: list[tuple[torch.Tensor, torch.Tensor]]) -> Memory:
        arena_blocks = 1 + len(rows.positions) // CHUNK_POSITIONS
        pools, arenas = (
            tuple(
                torch.full((n, x.shape[1], CHUNK_POSITIONS, x.shape[2]), torch.nan, dtype=x.dtype)
                for x in sequences[0]
            )
            for n in (rows.blocks, arena_blocks)
        )
        for index, part in enumerate(rows.parts):
            span = rows.span(index)
            place = torch.arange(part.context)
            block = rows.table.blocks[index].long()[place // CHUNK_POSITIONS]
            for pool, arena, vectors in zip(pools, arenas, sequences[index], strict=True):
                pool[block, :, place % CHUNK_POSITIONS] = vectors[: part.context]
                for row in range(part.rows):
                    held = int(rows.arena_row[span.start + row])
                    target = int(rows.write_row[0, span.start + row]) if held < 0 else held
                    memory = pool if held < 0 else arena
                    memory[target // CHUNK_POSITIONS, :, target % CHUNK_POSITIONS] = vectors[
                        part.context + row
                    ]
        return Memory(pools, arenas, sequences)

    @staticmethod
    def exact(
        q: torch.Tensor,
        memory: Memory,
        rows: Rows,
        window: int | None,
        scale: float,
        evicted: Sequence[int] = (),
    ) -> torch.Tensor:
        """Attention in float64: a masked softmax for each row and head over the whole sequence."""
        values_dim = memory.sequences[0][1].shape[2]
        out = torch.zeros(*q.shape[:2], values_dim, dtype=torch.float64)
        for index, part in enumerate(rows.parts):
            keys, values = (x.double() for x in memory.sequences[index])
            group = q.shape[1] // keys.shape[1]
            for row in range(part.rows):
                mask = _sees(part, row, len(keys), window)
                for chunk in evicted:
                    mask[chunk * CHUNK_POSITIONS : (chunk + 1) * CHUNK_POSITIONS] = False
                for head in range(q.shape[1]):
                    k, v = keys[mask, head // group], values[mask, head // group]
                    weight = (k @ q[rows.span(index)][row, head].double() * scale).softmax(0)
                    out[rows.span(index)][row, head] = weight @ v
        return out


def _sees(part: Part, row: int, size: int, window: int | None) -> torch.Tensor:
    """Which of the ``size`` vectors of a sequence the row sees."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[: part.context] = True
    mask[[part.context + ancestor for ancestor in part.path(row)]] = True
    if window is not None:
        places = list(range(part.context))
        places += [part.context + len(part.path(other)) - 1 for other in range(part.rows)]
        mask &= torch.tensor(places) > part.context + len(part.path(row)) - 1 - window
    return mask


@pytest.fixture(scope="session")
def memories() -> type[Memories]:
    return Memories


# -- numbers --------------------------------------------------------------------------------------


@pytest.fixture
def numbers() -> Callable[..., torch.Tensor]:
    """``numbers(*shape)``: float32 with heavy tails, a few of them 50 times too large."""
    generator = torch.Generator().manual_seed(11)

    def draw(*shape: int) -> torch.Tensor:
        x = torch.randn(*shape, generator=generator)
        x = x * (0.5 * torch.randn(*shape, generator=generator)).exp()
        return torch.where(torch.rand(*shape, generator=generator) < 0.01, 50 * x, x)

    return draw


@pytest.fixture(scope="session")
def assert_near() -> Callable[[torch.Tensor, torch.Tensor, tuple[float, float]], None]:
    """``assert_near(y, expected, (l2, peak))``: bounds the relative L2 error of every row, and the
    largest error relative to the expected number there, or to the root mean square of all expected
    numbers if that is larger. Rows are the last dimension."""

    def check(y: torch.Tensor, expected: torch.Tensor, bound: tuple[float, float]) -> None:
        assert y.shape == expected.shape
        assert y.isfinite().all()
        y, expected = y.double(), expected.double()
        error = (y - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)
        rms = expected.square().mean().sqrt()
        assert float(error.max()) <= bound[0]
        assert float(((y - expected).abs() / expected.abs().clamp_min(rms)).max()) <= bound[1]

    return check


# -- quantised matrices ---------------------------------------------------------------------------

SCALES_AT = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


@pytest.fixture(scope="session")
def random_planes() -> Callable[..., Planes]:
    """``random_planes(format, rows, columns, seed=)``: random codes, scales of a normal spread."""

    def make(
        name: str, rows: int, columns: int, seed: int = 0, activations: Activations = "int8"
    ) -> Planes:
        layout = LAYOUTS[name]
        generator = torch.Generator().manual_seed(seed)
        shape = (rows, columns // layout.block, layout.nbytes)
        raw = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        scales = torch.randn(shape[:2], generator=generator).half()
        for at in SCALES_AT.get(name, (0,)):
            raw[..., at : at + 2] = scales[..., None].view(torch.uint8)
        return pack(name, raw.flatten(1), columns, activations)

    return make


# -- drafts ---------------------------------------------------------------------------------------

DraftedSequences = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="session")
def drafted_sequences() -> Callable[[int, int], DraftedSequences]:
    """Arguments of the op ``accept_drafts``: five trees; the first has ``most_rows`` rows."""

    def make(seed: int, most_rows: int) -> DraftedSequences:
        rng = random.Random(seed)
        sizes = [most_rows, *(rng.randint(0, most_rows) for _ in range(4))]

        def padded(rows: list[list[int]], filler: int) -> torch.Tensor:
            return torch.tensor([row + [filler] * (most_rows - len(row)) for row in rows])

        def ids() -> torch.Tensor:
            return padded([[rng.randrange(2) for _ in range(size)] for size in sizes], 0)

        trees = [[-1, *(rng.randrange(max(0, r - 3), r) for r in range(1, n))] for n in sizes]
        parents = padded([tree[:n] for tree, n in zip(trees, sizes, strict=True)], NO_ROW)
        budget = torch.tensor([rng.choice((0, 1, 3, most_rows, 999)) for _ in sizes])
        return ids(), ids(), parents, budget

    return make


Candidates = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="session")
def candidates() -> Callable[..., Candidates]:
    """``candidates(seed, depths, ranks, nodes)``: operands of the op ``draft_trees`` for six
    sequences of many budgets. Scores of every other one are multiples of 1/2, so that many sums are
    equal, and one has fewer candidates than there is room for."""

    def make(seed: int, depths: int, ranks: int, nodes: int) -> Candidates:
        generator = torch.Generator().manual_seed(seed)
        numbers = 2 * torch.randn(6, depths, ranks + 5, generator=generator)
        scores, tokens = numbers.log_softmax(2).topk(ranks, 2)
        scores[::2] = (2 * scores[::2]).round() / 2
        scores[3, :, ranks // 2 + 1 :] = -torch.inf
        scores[3, -1, -1] = torch.nan
        budgets = torch.randint(1, nodes + 1, (6,), generator=generator)
        budgets[0], budgets[1], budgets[5] = nodes, 0, nodes + 7
        return tokens, scores, budgets

    return make


Placement = tuple[StoredDrafts, torch.Tensor, torch.Tensor, torch.Tensor, DraftedRows]


@pytest.fixture(scope="session")
def placements() -> Callable[[int, int], Placement]:
    """``placements(seed, most)``: operands of the op ``place_drafts`` for twelve slots of at most
    ``most`` drafts: trees and chains, stored as such and not, narrower, as wide and wider than what
    is stored, and parents and tokens that cannot be; certain sequences and padding among them."""

    def make(seed: int, most: int) -> Placement:
        rng = random.Random(seed)
        slots, vocabulary = 12, 50
        parents = torch.tensor(
            [
                [rng.randrange(i + 1) if slot % 2 else i for i in range(most)]
                for slot in range(slots)
            ]
        )
        tokens = torch.randint(
            0, vocabulary, parents.shape, generator=torch.Generator().manual_seed(seed)
        )
        for _ in range(most // 4):
            parents[rng.randrange(slots), rng.randrange(most)] = rng.choice((-7, -2, -1, most, 99))
            tokens[rng.randrange(slots), rng.randrange(most)] = rng.choice((-1, vocabulary, 10**12))
        counts = torch.tensor([rng.choice((0, most // 2, most, most + 3)) for _ in range(slots)])
        pending = torch.tensor([rng.randrange(vocabulary) for _ in range(slots)])
        order = rng.sample(range(slots), 9)
        widths = [rng.choice((0, 1, most // 2 + 1, most + 1, 64)) for _ in order]
        drafted = [(1, KNOWN_DRAFT, 1, 0)[number % 4] for number in range(len(order))]
        first = [3 + sum(widths[:number]) for number in range(len(order))]
        spans = torch.tensor(list(zip(first, widths, order, drafted, strict=True)))
        context = torch.tensor([rng.randrange(1000) for _ in order])
        start = torch.tensor([64 * number if number % 2 else -1 for number in range(len(order))])
        total = 3 + sum(widths) + 5
        tables = (torch.full((total,), -(12345 + number)) for number in range(7))
        stored = StoredDrafts(pending, tokens, parents, counts)
        return stored, spans.int(), context, start, DraftedRows(*tables)

    return make
