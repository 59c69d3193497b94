"""The contract between a model and the engine: the inputs and outputs of a step.

R rows, B sequences. Every tensor is on the model's device. Rows of one sequence are contiguous.
Rows are flat: decoding, verification of chains and trees, and prompt slices differ only in the
values of these tensors.
See ``docs/architecture.md``, "One step in arrays".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from kinfolk.plans import StatePlan
    from kinfolk_kernels.codecs import Stored
    from kinfolk_kernels.row_layout import RowLayout


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The resident chunks of each sequence in one pool, in increasing logical order.

    ``blocks`` int32 [B, N] physical places, ``chunks`` int32 [B, N] logical chunk numbers,
    ``length`` int32 [B] valid entries. ``lengths`` is ``length`` on the host, for uncapturable back
    ends.
    """

    blocks: torch.Tensor
    chunks: torch.Tensor
    length: torch.Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The step batch: the tensors of one step.

    tokens, positions      int64 [R]
    sequence_of_row        int64 [R]
    parent_row             int64 [R]   row of the previous token, -1 = the committed context
    limit                  int64 [R]   a row sees pool positions ``<= limit``
    ancestors              int64 [R]   bit j: the row sees row j of its segment in the arena
    arena_row              int64 [R]   place in the arena, -1 = the row is written to the pool
    arena_start            int64 [B]   arena row of the first row of the sequence
    write_row              int64 [pools, R]   block * 64 + offset; dummy rows for arena rows
    slot_of_sequence       int64 [B]
    context_len            int64 [B]
    logit_rows             int64 [n]   rows whose logits are computed
    store_rows, store_slots int64 [c]  checkpoints: slot i gets the state after row i, -1 = padding

    ``layout`` maps rows to sequences. Rows of no sequence are padding: they use the dummy slot and
    the dummy block, and their results are dropped. Every replay of a captured step reads the
    tensors again, while host values stay those of the capture.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    sequence_of_row: torch.Tensor
    parent_row: torch.Tensor
    limit: torch.Tensor
    ancestors: torch.Tensor
    arena_row: torch.Tensor
    arena_start: torch.Tensor
    write_row: torch.Tensor
    slot_of_sequence: torch.Tensor
    context_len: torch.Tensor
    logit_rows: torch.Tensor
    store_rows: torch.Tensor
    store_slots: torch.Tensor
    tables: tuple[BlockTable, ...]
    layout: RowLayout

    @property
    def rows(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """The kept rows of D drafted segments of at most T rows.

    path    int64 [D, T]  kept rows of each drafted segment in order, padded with -1
    n_keep  int64 [D]     number of kept rows; 0 = padding, the slot stays as it is
    slot    int64 [D]     slot of each segment
    """

    path: torch.Tensor
    n_keep: torch.Tensor
    slot: torch.Tensor
    _calls: dict[Hashable, tuple[Callable[..., None], list[Any]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def together(self, key: Hashable, op: Callable[..., None], layer: Any) -> None:
        """Ask for ``op(layers, path, n_keep, slot)`` behind the commit: one call for the layers
        with an equal ``key``, with the op of the first."""
        self._calls.setdefault(key, (op, []))[1].append(layer)

    def finish(self) -> None:
        """Make the calls that layers have asked for. Who calls ``commit`` of a model or of a
        drafter does this behind it."""
        for op, layers in self._calls.values():
            op(layers, self.path, self.n_keep, self.slot)
        self._calls.clear()


class PagedView(Protocol):
    """The paged state that one layer may read and write in one step."""

    pool_index: int
    window: int | None

    def pool(self, section: str) -> Stored:
        """A section in the pool: a view of its numbers [blocks, heads, 64, dim], or of its codes
        and scales."""
        ...

    def arena(self, section: str) -> Stored:
        """The same section in the step's arena, [arena blocks, heads, 64, dim]."""
        ...


class StateView(Protocol):
    """The state that a model may read and write in one step."""

    def paged(self, layer: int) -> PagedView: ...

    def recurrent(self, layer: int) -> Mapping[str, torch.Tensor]:
        """Named tensors [recurrent slots, ...] of the layer, indexed by slot."""
        ...

    def queries(self, layer: int) -> torch.Tensor:
        """The last queries of every slot, [slots + 1, rows, heads, dim], of a layer that keeps
        them."""
        ...


@dataclass(frozen=True, slots=True)
class Forward:
    """Result of a forward: hidden states, the trace that a commit reads, and features.

    ``hidden`` [R, width], floating point, before the last norm; ``trace`` has one opaque entry a
    layer, ``None`` if the layer has nothing to commit; ``features`` bfloat16 [R, N * width] as
    :meth:`Model.features` asked for them, ``None`` if it did not.
    """

    hidden: torch.Tensor
    trace: tuple[Any, ...]
    features: torch.Tensor | None = None


class Model(Protocol):
    """A loaded model. Stateless: the state of sequences is in the view."""

    def forward(self, batch: StepBatch, view: StateView) -> Forward:
        """Run all rows. Advances the state of segments without drafts in place, and does not change
        that of drafted segments."""
        ...

    def commit(self, trace: Sequence[Any], kept: CommitBatch, view: StateView) -> None:
        """Advance recurrent state along the kept rows of drafted segments; the caller calls
        :meth:`CommitBatch.finish` behind it."""
        ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids int64 [R] -> embeddings [R, width]."""
        ...

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The last norm: [n, width] hidden states -> [n, width] in the dtype that :meth:`logits`
        takes."""
        ...

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """[n, width] normed rows -> [n, vocabulary] float32 logits."""
        ...

    def features(self, layers: Sequence[int], *, final: bool = False) -> None:
        """Let every forward return the residual stream after each of ``layers``, counted from 0,
        side by side in this order, and behind them the output of the last norm if ``final``.

        Called at most once, before the first step, because a captured step keeps its features.
        Raises :class:`ValueError` for a layer that is named twice or does not exist. A model may
        lack this method: it runs, but no drafter that reads features can draft for it.
        """
        ...


StepFn = Callable[[StepBatch, StateView], Forward]


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The size of the steps that a step function runs: kind, rows and sequences."""

    kind: str
    rows: int
    sequences: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about the model that a policy or drafter is created for."""

    name: str
    family: str
    architecture: str
    state: StatePlan
    vocabulary: int
    context: int
