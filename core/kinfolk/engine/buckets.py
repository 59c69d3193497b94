"""Buckets: the fixed sizes of captured steps, and the division of a step's items among them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kinfolk.engine.input_buffers import BucketShape
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.state.state import State
from kinfolk_kernels.row_layout import MAX_SHORT_ROWS, LaunchTraits

SEQUENCES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Sequences of steps that only decode."""

MIXED_SEQUENCES = (2, 8, 32, 128)
"""Sequences of steps with slices of prompts: fewer sizes, as their rows have many. If something is
drafted in them, too, they have room for all slots."""

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Rows of steps that verify: each has logits."""

MAX_VERIFY_ROWS = ROWS[-1]
"""A step that verifies more rows is several captured ones, each of which reads all weights."""

VERIFY_SEQUENCES = (1, *MIXED_SEQUENCES)
"""Sequences of steps that verify. A sequence that is not there costs little, and how many there are
changes with every request that begins or ends."""

VERIFY_ROWS = tuple(size for size in ROWS if size >= 8)
"""Rows of steps that verify for several sequences."""

MIXED_DRAFTED = (32, 128)
"""Drafted rows of mixed steps, which have as many rows at least."""

MIXED_ROWS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows of steps with slices of prompts."""

LARGE_ROWS = (768, 1024, 1536, 2048, 3072, 4096)
"""The same for models with slices as long as the last, which are mixtures of experts: the host
takes longer to launch the kernels of such a step than the device takes to run them. Nothing is
drafted in these steps."""

MAX_FETCH_ROWS = MIXED_ROWS[-1]
"""Rows of the largest step in which chosen experts come to near bays. In a larger one a prompt
would choose nearly all of them, and push out those that decoding uses."""

LARGE_SEQUENCES = (8, 32, 128)
"""Sequences of large steps. One size serves all steps of a model."""

WIDTHS = (4, 16, 64)
"""Rows of a drafted sequence. A kernel processes 16 of them at a time."""

MAX_HOST_SEQUENCES = 4
"""Most sequences of steps that verify drafts of the host and are captured early: with more of them
a step has so many rows that drafts seldom pay."""

STORES = 8
"""Checkpoints that a mixed step may store. Large steps have captures without any, too: kernels that
may store them take a twentieth of such a step more."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A fixed size of steps. ``width`` is the most rows of a drafted sequence, 1 = no drafts;
    ``drafted`` the drafted rows, ``long`` the slices of more than ``MAX_SHORT_ROWS`` rows;
    ``stores``: whether a mixed step may store checkpoints."""

    kind: Literal["decode", "verify", "mixed"]
    rows: int
    sequences: int
    width: int = 1
    trees: bool = False
    drafted: int = 0
    long: int = 0
    stores: bool = True

    def __str__(self) -> str:
        more = f", {self.drafted} drafted" if self.kind == "mixed" and self.drafted else ""
        more += "" if self.stores else ", no checkpoints"
        return f"{self.kind}: {self.rows} rows, {self.sequences} sequences{more}"

    @property
    def samples_greedy_rows(self) -> bool:
        """Whether greedy rows are sampled as others are. Fewer kinds are fewer captures: in a mixed
        step, or one that verifies for several sequences, sampling is a small part of the time."""
        return self.kind == "mixed" or (self.kind == "verify" and self.sequences > 1)

    @property
    def traits(self) -> LaunchTraits:
        """What the steps of this bucket can have. A launch for rows of a kind, or of a number, that
        none of them has would take its time all the same."""
        draft_rows = min(self.width, self.drafted)
        if self.kind == "verify" and self.sequences == 1:
            smaller = ROWS[: ROWS.index(self.rows)]
            least = 1 + max(smaller, default=0)
            counts = range(least, min(self.width, self.rows) + 1)
            return LaunchTraits(False, draft_rows, self.trees, tuple(counts))
        most = min(self.rows, MAX_SHORT_ROWS if self.kind == "mixed" else self.width)
        return LaunchTraits(True, draft_rows, self.trees, tuple(range(1, most + 1)))

    @property
    def shape(self) -> BucketShape:
        if self.kind != "mixed":
            # With several rows a sequence, padding rows form one more sequence.
            sequences = self.sequences + (self.kind == "verify")
            return BucketShape(
                self.rows,
                sequences,
                sequences,
                self.rows,
                short=sequences,
                short_rows=self.rows,
            )
        sequences = self.sequences + 1
        return BucketShape(
            self.rows,
            sequences,
            sampled=sequences,
            logits=sequences + self.drafted,
            stores=STORES if self.stores else 0,
            slices=min(self.sequences, self.rows // 2),
            short=sequences,
            long=self.long,
            short_rows=min(self.rows, sequences * MAX_SHORT_ROWS),
        )


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of a model.

    ``least``: buckets for fewer sequences are not used for decoding, so that a row's numbers do not
    depend on the number of sequences. ``most_long``: most slices of more than ``MAX_SHORT_ROWS``
    rows in a step that has rows for as many. ``drafted``: the :func:`usual_draft`; all steps that
    verify have room for as many rows of a sequence, which makes fewer captures. ``large``:
    sequences of large steps, 0 = no such step is captured.
    """

    least: int = 1
    most_long: int = LARGE_ROWS[-1] // (MAX_SHORT_ROWS + 1)
    drafted: int = 0
    large: int = 0
    slots: int = SEQUENCES[-1]

    @classmethod
    def of(
        cls, state: State, invariant_sequences: int | None, drafted: int = 0, slice_rows: int = 0
    ) -> Buckets:
        """The buckets of a model with this state and slices of ``slice_rows`` rows.
        ``invariant_sequences``: the most sequences of a decode step with --batch-invariant."""
        slots = state.limits.slots
        least, large = min(slots, invariant_sequences or 1), large_sequences(slots, slice_rows)
        # Attention decodes the whole context of a slice from a quantised format to plain numbers,
        # so the memory of a captured step has room for one context.
        if state.coded:
            return cls(least, 1, drafted, large, slots)
        return cls(least, drafted=drafted, large=large, slots=slots)

    def smallest(self, items: Sequence[Item]) -> Bucket | None:
        """The smallest bucket for ``items``; ``None`` if there is none."""
        drafted = [item.rows for item in items if item.is_drafted]
        rows = sum(item.rows for item in items)
        trees = any(item.is_tree for item in items)
        if any(item.kind is ItemKind.PREVIEW for item in items):
            # One capture for ends of prompts of all lengths.
            most = max(rows, MAX_SHORT_ROWS)
            return self._mixed(items, most, WIDTHS[-1], trees, max(sum(drafted), MIXED_DRAFTED[-1]))
        width = _next_size(max(*drafted, self.drafted + 1), WIDTHS) if drafted else 1
        if any(item.of_prompt or item.stores for item in items):
            return self._mixed(items, rows, width, trees, sum(drafted))
        if not drafted:
            sequences = _next_size(max(len(items), self.least), SEQUENCES)
            return None if sequences is None else Bucket("decode", sequences, sequences)
        several = len(items) > 1
        bucket_rows = _next_size(rows, VERIFY_ROWS if several else ROWS)
        sequences = _next_size(len(items), VERIFY_SEQUENCES)
        if bucket_rows is None or sequences is None or width is None:
            return None
        sequences = self._verify_sequences(sequences, bucket_rows)
        return Bucket("verify", bucket_rows, sequences, width, trees, bucket_rows)

    def _verify_sequences(self, sequences: int, rows: int) -> int:
        """``sequences``, of ``VERIFY_SEQUENCES``, but no more than the slots or the rows need."""
        most = _next_size(min(self.slots, SEQUENCES[-1]), SEQUENCES) or SEQUENCES[-1]
        return min(sequences, most, rows)

    def _mixed(
        self, items: Sequence[Item], rows: int, width: int | None, trees: bool, drafted: int
    ) -> Bucket | None:
        if rows > MIXED_ROWS[-1]:
            return None if drafted else self._large(items, rows)
        bucket_rows = _next_size(rows, MIXED_ROWS)
        all_slots = min(self.slots, MIXED_SEQUENCES[-1])
        sequences = _next_size(max(len(items), all_slots if drafted else 1), MIXED_SEQUENCES)
        bucket_drafted = _next_size(drafted, MIXED_DRAFTED) if drafted else 0
        if bucket_rows is None or sequences is None or width is None or bucket_drafted is None:
            return None
        bucket_drafted = min(bucket_drafted, bucket_rows)
        long = self._long(bucket_rows)
        if not _has_room(items, long):
            return None
        sequences = min(sequences, bucket_rows)
        return Bucket("mixed", bucket_rows, sequences, width, trees, bucket_drafted, long)

    def _large(self, items: Sequence[Item], rows: int) -> Bucket | None:
        bucket_rows = _next_size(rows, LARGE_ROWS)
        if bucket_rows is None or len(items) > self.large:
            return None
        long = self._long(bucket_rows)
        if not _has_room(items, long):
            return None
        stores = any(item.stores for item in items)
        return Bucket("mixed", bucket_rows, self.large, long=long, stores=stores)

    def _long(self, rows: int) -> int:
        """The most long slices of a step of so many rows."""
        return min(self.most_long, rows // (MAX_SHORT_ROWS + 1))

    def likely(self, limits: SchedulerLimits) -> Iterator[Bucket]:
        """The buckets of steps with up to ``limits.slots`` sequences and up to
        ``limits.step_tokens`` rows, drafts included; the most frequent first."""
        slots = max(limits.slots, self.least)
        sequences = [n for n in SEQUENCES if self.least <= n < slots]
        largest = _next_size(min(slots, SEQUENCES[-1]), SEQUENCES)
        sequences += [] if largest is None else [largest]
        yield from (Bucket("decode", n, n) for n in sequences)
        if limits.proposed_chain:
            yield from self._likely_verify(limits.proposed_chain, slots)
        if limits.previews:
            rows = MAX_SHORT_ROWS
            room = _next_size(min(slots, MIXED_SEQUENCES[-1]), MIXED_SEQUENCES) or rows
            yield Bucket("mixed", rows, min(room, rows), WIDTHS[-1], drafted=rows)
        yield from self._likely_mixed(limits, slots)
        if limits.max_draft > limits.proposed_chain:
            yield from self._likely_verify(limits.max_draft, min(slots, MAX_HOST_SEQUENCES))
        if limits.proposed_tree:
            # By cost, several sequences have chains where there are any.
            most = 1 if limits.proposed_chain else slots
            yield from self._likely_verify(limits.proposed_tree, most, trees=True)
        if self.large and limits.step_tokens > MIXED_ROWS[-1]:
            yield from self._likely_large(limits.step_tokens)

    def _likely_verify(self, drafted: int, slots: int, *, trees: bool = False) -> Iterator[Bucket]:
        """Those of steps that verify up to so many drafted rows of each sequence."""
        found: dict[Bucket, None] = {}
        for size in VERIFY_SEQUENCES[: bisect_left(VERIFY_SEQUENCES, slots) + 1]:
            sizes = ROWS[1:] if size == 1 else VERIFY_ROWS
            most, smaller = bisect_left(sizes, min(size, slots) * (drafted + 1)), 1
            for rows in sizes[: most + 1]:
                sequences = self._verify_sequences(size, rows)
                least = smaller + 1 if size == 1 else 2
                for width in self._widths(least, min(rows, drafted + 1)):
                    found[Bucket("verify", rows, sequences, width, trees, rows)] = None
                smaller = rows
        yield from found

    def _widths(self, least: int, most: int) -> Sequence[int]:
        """The widths of steps whose widest sequence has ``least`` to ``most`` rows."""
        first, last = (bisect_left(WIDTHS, max(rows, self.drafted + 1)) for rows in (least, most))
        return WIDTHS[first : last + 1]

    def _likely_mixed(self, limits: SchedulerLimits, slots: int) -> Iterator[Bucket]:
        largest_rows = _next_size(min(limits.step_tokens, MIXED_ROWS[-1]), MIXED_ROWS)
        for rows in MIXED_ROWS[: MIXED_ROWS.index(largest_rows or MIXED_ROWS[-1]) + 1]:
            sizes = [n for n in MIXED_SEQUENCES if n < min(slots, rows)]
            top = _next_size(min(slots, MIXED_SEQUENCES[-1]), MIXED_SEQUENCES)
            sizes += [] if top is None else [min(top, rows)]
            long = self._long(rows)
            sizes = list(dict.fromkeys(sizes))
            yield from (Bucket("mixed", rows, n, long=long) for n in sizes)
            if limits.proposed and slots > 1:
                drafted = usual_draft(0, limits.proposed_chain, limits.proposed_tree)
                width = _next_size(drafted + 1, WIDTHS) or WIDTHS[-1]
                trees = limits.proposed_chain == 0
                most = _next_size(slots * (drafted + 1), MIXED_DRAFTED)
                used = [n for n in MIXED_DRAFTED if n <= (most or MIXED_DRAFTED[-1])]
                for among in dict.fromkeys(min(n, rows) for n in used):
                    yield Bucket("mixed", rows, sizes[-1], width, trees, among, long)

    def _likely_large(self, step_tokens: int) -> Iterator[Bucket]:
        most = _next_size(step_tokens, LARGE_ROWS) or LARGE_ROWS[-1]
        for stores in (False, True):
            for rows in LARGE_ROWS[: LARGE_ROWS.index(most) + 1]:
                yield Bucket("mixed", rows, self.large, long=self._long(rows), stores=stores)

    def parts(self, items: Sequence[Item]) -> list[tuple[Sequence[Item], Bucket | None]]:
        """``items`` in groups that each fit a bucket, in order, and their buckets; one group and
        ``None``, as it runs in its own size, if some item fits none."""
        bucket = self.smallest(items)
        if bucket is not None or any(self.smallest([i]) is None for i in items):
            return [(items, bucket)]
        groups: list[list[Item]] = [[]]
        for item in items:
            if groups[-1] and self.smallest([*groups[-1], item]) is None:
                groups.append([])
            groups[-1].append(item)
        return [(group, self.smallest(group)) for group in groups]


def _has_room(items: Sequence[Item], most_long: int) -> bool:
    """Whether a mixed step with so many long slices has room for those of ``items``, and for the
    checkpoints that they store."""
    long = sum(item.rows > MAX_SHORT_ROWS for item in items)
    return long <= most_long and sum(len(item.stores) for item in items) <= STORES


def large_sequences(slots: int, slice_rows: int) -> int:
    """The sequences of captured large steps of a model with so many slots and slices of
    ``slice_rows`` rows; 0 = there are none."""
    if slice_rows < LARGE_ROWS[-1]:
        return 0
    return _next_size(min(slots, LARGE_SEQUENCES[-1]), LARGE_SEQUENCES) or LARGE_SEQUENCES[-1]


def wanted_captures(
    slots: int,
    step_tokens: int,
    slice_rows: int,
    *,
    host: int = 0,
    chain: int = 0,
    tree: int = 0,
    previews: bool = False,
) -> int:
    """The number of captured steps that these limits make likely, with drafts of so many tokens of
    the host and chains and trees of the device, and with ``previews`` of ends of prompts: twice, if
    greedy rows are not sampled as others are."""
    limits = SchedulerLimits(
        slots,
        2,
        step_tokens,
        slice=1,
        max_draft=host,
        proposed_chain=chain,
        proposed_tree=tree,
        previews=previews,
    )
    large = large_sequences(slots, slice_rows)
    buckets = Buckets(drafted=usual_draft(host, chain, tree), large=large, slots=slots)
    likely = list(buckets.likely(limits))
    return 2 * len(likely) - sum(bucket.samples_greedy_rows for bucket in likely)


def usual_draft(host: int, chain: int, tree: int) -> int:
    """The rows of a draft that all steps which verify have room for: of a chain of the device, or
    if it proposes none, of a tree, or else of a draft of the host."""
    return chain or tree or host


def draft_lanes(count: int) -> int | None:
    """The lanes of the captured draft that has room for so many; ``None`` if there is none."""
    return _next_size(count, SEQUENCES)


def lane_depth(lanes: int, most: int) -> int:
    """Tokens of each lane, of at most ``most``, that a draft of so many lanes goes deep: those that
    a step which verifies has rows for, if all lanes have as many. A head over more would be the
    larger part of a draft of many lanes."""
    size = draft_lanes(lanes) or lanes
    return min(most, max(1, MAX_VERIFY_ROWS // size - 1))


def draft_rows(slots: int, most: int) -> int:
    """The most rows of lanes, their own and those that are drafted, of a draft for up to so many
    sequences; more than any captured draft has lanes for are one draft too."""
    sizes = {draft_lanes(count) or count for count in range(1, slots + 1)}
    return max(lanes * (1 + lane_depth(lanes, most)) for lanes in sizes)


def likely_lanes(slots: int) -> list[int]:
    """The lanes of all captured drafts for up to so many sequences."""
    return sorted({draft_lanes(count) or SEQUENCES[-1] for count in range(1, slots + 1)})


def largest_step(slots: int, slice_rows: int) -> tuple[int, int]:
    """The most rows, and rows of logits without drafts, of captured steps for so many slots and
    slices of ``slice_rows`` rows."""
    if large := large_sequences(slots, slice_rows):
        return LARGE_ROWS[-1], 1 + large
    sequences = _next_size(min(slots, MIXED_SEQUENCES[-1]), MIXED_SEQUENCES)
    return MIXED_ROWS[-1], 1 + (sequences or MIXED_SEQUENCES[-1])


def _next_size(size: int, sizes: Sequence[int]) -> int | None:
    """The least of the ascending ``sizes`` that is at least ``size``, or ``None``."""
    place = bisect_left(sizes, size)
    return sizes[place] if place < len(sizes) else None
