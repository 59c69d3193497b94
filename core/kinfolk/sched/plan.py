"""What the scheduler tells the engine to do in a step, and what it hears back: integers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from kinfolk.plans import ExpertSwap
from kinfolk.sched.draft_counts import DraftMode
from kinfolk.score_api import ScoreReason
from kinfolk.state.chunks import SlotLease
from kinfolk.state.operations import StateOperation

TokenScores = npt.NDArray[np.float32]

SCORER_MODEL = 1
"""The model of items that read a text to score its tokens; 0 is the one that answers."""

CHUNK_SCORER_MODEL = 2
"""The model of items that read a sequence along, to score its chunks."""

UNKNOWN_TOKENS = (-1,)
"""The tokens of a row that follows a step whose result is not known yet."""


class ItemKind(Enum):
    """What the rows of an item are: a slice of a prompt, one row, a row and drafts behind it, or
    the last rows of a prompt of which none is kept: they run for their queries."""

    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"
    PREVIEW = "preview"


@dataclass(frozen=True, slots=True)
class Item:
    """The rows of one sequence in a step.

    ``tokens`` go to positions ``start, start + 1, ...`` for prefill, decode and chains. A verify
    item starts with the pending token followed by drafts; ``parents`` gives the index inside the
    item of each row's predecessor (-1 for the first), ``None`` = a chain. ``proposed`` further rows
    hold tokens that only the device knows, the first of those proposed for the slot; they are a
    tree if ``tree``. ``propose``: what to propose behind the tokens that the item chooses.
    ``budget`` is the largest number of tokens that may still be emitted. ``stores`` asks for
    checkpoints: (tokens of the item after which to store, slot to store in). ``model`` is 0,
    ``SCORER_MODEL`` or ``CHUNK_SCORER_MODEL``: each has state of its own.
    """

    lease: SlotLease
    request_id: str
    kind: ItemKind
    tokens: tuple[int, ...]
    start: int
    sample: bool = True
    budget: int = 1
    parents: tuple[int, ...] | None = None
    stores: tuple[tuple[int, int], ...] = ()
    model: int = 0
    proposed: int = 0
    tree: bool = False
    propose: DraftMode = "off"

    @property
    def rows(self) -> int:
        return len(self.tokens) + self.proposed

    @property
    def of_prompt(self) -> bool:
        """Whether the rows are those of a prompt."""
        return self.kind in (ItemKind.PREFILL, ItemKind.PREVIEW)

    @property
    def is_drafted(self) -> bool:
        """Whether rows may be rejected."""
        return self.kind in (ItemKind.VERIFY, ItemKind.PREVIEW)

    @property
    def is_tree(self) -> bool:
        """Whether several rows may have one predecessor."""
        return self.parents is not None or (self.tree and self.proposed > 0)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Chunks of a sequence to score behind a step: those that ``length`` positions fill, which were
    committed before it. ``tokens`` are all that are known when the step is launched, and not to be
    read later; ``resident`` and ``last_used`` of each chunk are those of
    :class:`kinfolk.score_api.ChunkQuery`. ``digests``: the places of compressed keys, -1 = none.
    The rows of the positions from ``started`` to ``stop`` will have run in the slot when the step
    is done, and of drafts perhaps more."""

    lease: SlotLease
    request_id: str
    tokens: Sequence[int]
    length: int
    reason: ScoreReason
    resident: npt.NDArray[np.bool_] = field(compare=False)
    last_used: npt.NDArray[np.int64] = field(compare=False)
    digests: npt.NDArray[np.int32] = field(compare=False)
    started: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True)
class ChunkScores:
    """What came of a :class:`ScoreRequest`: a score of each chunk; ``None``: nobody has an opinion,
    so the last chunks are kept; ``keep``: nothing is to change; ``read``: the sequence waits until
    another model has read what is new of it."""

    lease: SlotLease
    values: tuple[float, ...] | npt.NDArray[np.float64] | None = None
    keep: bool = False
    read: bool = False


@dataclass(frozen=True, slots=True)
class ReadingSlice:
    """An item of another model, with the operations on that model's state before it: a slice of a
    text of ``length`` tokens so far. With the last slice, all of them are scored."""

    item: Item
    operations: tuple[StateOperation, ...]
    length: int

    @property
    def is_last(self) -> bool:
        return self.item.start + self.item.rows == self.length


@dataclass(frozen=True, slots=True)
class ReadingResult:
    """What became of a :class:`ReadingSlice`; ``scores`` of a last one, one for each token."""

    request_id: str
    scores: TokenScores | None = None
    error: str | None = None
    model: int = SCORER_MODEL


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: state operations first, then the items' rows, then ``scores``: chunks to score for
    the plan after the next. ``readings`` are the parts of other models, at most one of each.
    ``swaps`` of experts come after the operations; they change no number."""

    step_id: int
    items: tuple[Item, ...]
    operations: tuple[StateOperation, ...]
    scores: tuple[ScoreRequest, ...] = ()
    readings: tuple[ReadingSlice, ...] = ()
    swaps: tuple[ExpertSwap, ...] = ()

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.items)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token before sampling filters, and the best alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What became of an item: ``kept`` rows are committed, ``emitted`` tokens were chosen.

    After a decode or verify item ``len(emitted) == kept``; the last emitted token is pending: it is
    not in the state yet. A prefill item keeps all its rows and emits one token if it samples; a
    preview keeps none.
    ``path`` are the proposed rows that were kept, ``proposed``: so many tokens, one after another,
    does the device propose for what follows, and ``confidence`` are the chances of their paths by
    the drafter, if they were asked for.
    """

    lease: SlotLease
    request_id: str
    kept: int
    emitted: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None
    path: tuple[int, ...] = ()
    proposed: int = 0
    confidence: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of a step: a result for each of its items, and the seconds since the step before,
    or since its launch if that was later; 0 = not measured, or a step was captured meanwhile.
    ``arrived``: identities of chunks and checkpoints whose bytes have come to host memory since the
    step before. ``scores``: one for each of the plan's. ``readings``: one for each of the plan's.
    """

    step_id: int
    results: tuple[ItemResult, ...]
    seconds: float = 0.0
    arrived: tuple[int, ...] = ()
    scores: tuple[ChunkScores, ...] = ()
    readings: tuple[ReadingResult, ...] = ()
