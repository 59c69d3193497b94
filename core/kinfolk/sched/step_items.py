"""The items of a step: which rows each sequence has in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kinfolk.sched.checkpoints import Checkpoints
from kinfolk.sched.choices import Choices
from kinfolk.sched.drafts import Drafts
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.paging import Paging
from kinfolk.sched.plan import UNKNOWN_TOKENS, Item, ItemKind
from kinfolk.sched.request import Sequence
from kinfolk.sched.turns import Turns
from kinfolk.state.sequence_tables import SequenceTables


class StepItems:
    """Makes items, and gives the positions that they write to a place."""

    def __init__(
        self,
        limits: SchedulerLimits,
        tables: SequenceTables,
        drafts: Drafts,
        checkpoints: Checkpoints,
        choices: Choices,
        paging: Paging,
    ) -> None:
        self._paging = paging
        self._limits, self._tables, self._drafts = limits, tables, drafts
        self._checkpoints, self._choices = checkpoints, choices

    def prefill_rows(self, prompts: list[Sequence], *, mixed: bool) -> int:
        """Rows that decoding leaves to prompts: the head's next slice, or the share if larger.
        ``mixed``: whether sequences decode in the step."""
        prompts = [each for each in prompts if not self._paging.waits(each)]
        if not prompts:
            return 0
        head = self._next_slice(prompts[0], mixed)
        share = int(self._limits.prefill_share * self._limits.step_tokens)
        if head >= share:
            return head
        return max(head, min(share, sum(self._next_slice(each, mixed) for each in prompts)))

    def _next_slice(self, sequence: Sequence, mixed: bool) -> int:
        """Tokens up to the next multiple of the slice length, or to the end of the prompt. Slices
        of a paged sequence are the same in any company: what it sees depends on them."""
        size, start = self._limits.slice, sequence.computed
        end = min((start // size + 1) * size, len(sequence.request.prompt))
        if mixed and self._limits.mixed_slice and sequence.residency is None:
            end = min(end, (start // self._limits.mixed_slice + 1) * self._limits.mixed_slice)
        return self._paging.slice_end(sequence, end, size) - start

    def decode(self, turns: Turns, rows: int) -> list[Item]:
        """A row, and drafts if they pay, for each sequence whose turn it is, at most ``rows``."""
        if not turns:
            return []
        most = min(rows, self._limits.step_sequences or rows)
        served = turns.front(most, self._paging.waits)
        left = min(rows, self._limits.verify_rows or rows) - len(served)
        drafts = self._drafts.choose(served, left)
        proposes = self._drafts.proposes(served, drafts, left)
        items = []
        for sequence, draft, propose in zip(served, drafts, proposes, strict=True):
            lease, start = sequence.leased, sequence.computed
            item = Item(
                lease,
                sequence.request.id,
                ItemKind.VERIFY if draft.tokens or draft.proposed else ItemKind.DECODE,
                (sequence.known[start], *draft.tokens),
                start,
                budget=sequence.budget,
                proposed=draft.proposed,
                tree=draft.tree,
                propose=propose,
            )
            stop = start + min(item.rows, item.budget)
            self._paging.before_decode(sequence, start, stop)
            self._tables.extend(lease, stop)
            items.append(item)
        return items

    def following(self, sequence: Sequence, item: Item) -> Item:
        """The row after that of an item which is under way: that step chooses its token."""
        start = item.start + 1
        self._paging.before_decode(sequence, start, start + 1)
        self._tables.extend(item.lease, start + 1)
        budget = item.budget - 1
        return Item(item.lease, item.request_id, item.kind, UNKNOWN_TOKENS, start, budget=budget)

    def prefill(self, prompts: list[Sequence], rows: int, *, mixed: bool) -> list[Item]:
        """The next slice of each prompt that fits into ``rows``; ``mixed``: as above."""
        items = []
        for sequence in prompts:
            if self._paging.waits(sequence):
                continue
            size = self._next_slice(sequence, mixed)
            if size > rows:
                continue
            rows -= size
            items.append(self._slice_item(sequence, size))
        return items

    def _slice_item(self, sequence: Sequence, size: int) -> Item:
        lease, start, stop = sequence.leased, sequence.computed, sequence.computed + size
        if self._paging.previews(sequence, stop):
            self._paging.before_preview(sequence, stop)
            self._tables.extend(lease, stop)
            tokens = sequence.request.prompt[start:stop]
            kind, name = ItemKind.PREVIEW, sequence.request.id
            return Item(lease, name, kind, tokens, start, sample=False)
        self._paging.before_slice(sequence, stop)
        self._tables.extend(lease, stop)
        last = stop == len(sequence.request.prompt)
        return Item(
            lease,
            sequence.request.id,
            ItemKind.PREFILL,
            sequence.request.prompt[start:stop],
            start,
            sample=last,
            propose=self._drafts.proposes_first(sequence) if last else "off",
            budget=sequence.budget,
            stores=self._checkpoints.take(
                sequence, lease, stop, for_choices=self._choices.leads(sequence)
            ),
        )


def draft_depth(item: Item, deepest: int | None) -> int:
    """Most drafted tokens of an item that can be accepted; ``deepest``: of what the device
    proposes."""
    rows = min(item.rows, item.budget) - 1
    return rows if deepest is None or not item.proposed else min(rows, deepest)


@contextmanager
def forked_items(tables: SequenceTables, sequences: Iterable[Sequence]) -> Iterator[list[Item]]:
    """Items of copies of sequences, each of which chooses the token after the pending one. The
    copies end with the context. Raises :class:`PoolExhausted` if there is no room for them."""
    items: list[Item] = []
    try:
        for sequence in sequences:
            start = sequence.computed
            lease = tables.fork(sequence.leased, start + 1)
            tokens = (sequence.known[start],)
            items.append(Item(lease, sequence.request.id, ItemKind.DECODE, tokens, start))
            tables.extend(lease, start + 1)
        yield items
    finally:
        for item in items:
            tables.release(item.lease)
