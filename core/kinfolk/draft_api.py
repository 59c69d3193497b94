"""The contract between drafters and the engine: those of the host, and those with weights.

A drafter proposes tokens, which its target, the model it drafts for, verifies. :class:`Drafter` is
all that one of the host has; the rest of this module is about drafters with weights.

Their weights come from a file of their own or from the target's. Their state is more layers of the
target's state: they follow the target's in one :class:`~kinfolk.plans.StatePlan` and are paged,
shared, forked and checkpointed with it, so a drafter writes no cache code.

Loading: ``DrafterSpec.prepare(file, facts)`` answers a :class:`DraftPlan` without torch, and
``DrafterSpec.build(plan, weights, context, target)`` a :class:`ModelDrafter`.

A step: behind every forward of the target, :meth:`ModelDrafter.extend` writes the drafter's state
for all rows; once the target has chosen tokens, :meth:`ModelDrafter.commit` advances recurrent
state along the kept rows. Then, without the host, :meth:`ModelDrafter.draft` starts at the last
chosen token of each lane, a sequence that is to be drafted for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from kinfolk.checked import Checked, check_references
from kinfolk.config import ModelConfig
from kinfolk.plans import Codec, LayerState, StatePlan, WeightPlan

if TYPE_CHECKING:
    import torch

    from kinfolk.gguf.metadata import Metadata
    from kinfolk.model_api import CommitBatch, StateView, StepBatch

MAX_PROPOSED = 63
"""Most proposed rows of a sequence in a step: a path has 64 bits, one for the last chosen token."""

CANDIDATES: Final = 8
"""Candidates that a drafter usually has for each token: trees seldom have more siblings."""


# -- drafters of the host -------------------------------------------------------------------------


class Drafter(Protocol):
    """Proposes tokens for verification, which keeps only those that sampling would have chosen.

    ``known`` is the prompt and all emitted tokens. A request keeps one list, which only grows, so
    the identity of the list identifies the request.
    """

    def propose(self, known: list[int], limit: int) -> list[int]:
        """At most ``limit`` tokens to follow ``known``."""
        ...

    def release(self, known: list[int]) -> None:
        """The request has ended: drop the state kept for it, if there is any."""
        ...


# -- loading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a drafter may know of the model it drafts for, before any weight is read.

    ``path`` and ``metadata`` are those of the target's file, with its vocabulary and special
    tokens; ``config`` has layers, width, size of the vocabulary and whatever else its family reads.
    ``state`` is the target's state; ``context`` the positions that a sequence may have; ``codec``
    the storage of keys and values that the user wants.

    ``draft_tokens`` is the number of tokens of a draft that the user asked for, ``None`` = the
    drafter's choice; ``options`` are those of ``--draft-option``, of the names that
    ``DrafterSpec.options`` lists.

    There is no embedding scale and no softcap here: ``Model.embed`` and ``Model.logits`` apply the
    target's own.
    """

    path: Path
    family: str
    metadata: Metadata
    config: ModelConfig
    state: StatePlan
    context: int
    codec: Codec = field(default_factory=Codec)
    draft_tokens: int | None = None
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def first_layer(self) -> int:
        """The number of the drafter's first state entry: its entries follow the target's, and are
        numbered on, in ``Shared.layer``, in ``BuildContext.state`` and in a ``StateView``."""
        return len(self.state.layers)


@dataclass(frozen=True, slots=True)
class DraftPlan(Checked):
    """What a drafter needs, and what it can do: the answer of ``DrafterSpec.prepare``.

    weights       its weights and the tensors of the drafter's file that they are read from
    state         its state, one entry a layer, behind the target's
    features      layers of the target whose outputs it reads, in the order of their columns
    final         whether the output of the target's last norm stands behind them
    block         rows of a lane in one draft, the last chosen token's row included; at most 64
    depth         tokens that it can propose one after another, at most ``MAX_PROPOSED``
    columns       candidates for each of them, the best first
    width         numbers of a row of the target that it is made for, and
    vocabulary    its number of tokens; the core refuses another target. ``None`` = any
    own_trees     whether it states the parents of its candidates, so that it proposes no chain
    fill          token of the block's rows behind the first, such as a mask
    config        whatever ``build`` needs
    """

    weights: WeightPlan
    state: tuple[LayerState, ...] = ()
    features: tuple[int, ...] = ()
    final: bool = False
    width: int | None = None
    vocabulary: int | None = None
    block: int = 1
    depth: int = 1
    columns: int = 1
    own_trees: bool = False
    fill: int = 0
    config: Any = None

    def check(self) -> None:
        for name, most in (("block", MAX_PROPOSED + 1), ("depth", MAX_PROPOSED)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"DraftPlan.{name}: {getattr(self, name)} is not in 1..{most}")
        if self.columns < 1:
            raise ValueError(f"DraftPlan.columns: {self.columns} is less than 1")
        if len(set(self.features)) < len(self.features):
            raise ValueError(f"DraftPlan.features: {self.features} names a layer twice")
        if self.fill < 0:
            raise ValueError(f"DraftPlan.fill: {self.fill} is no token")

    def feature_width(self, width: int) -> int:
        """Numbers of a row of features, for a target whose rows have ``width``."""
        return (len(self.features) + self.final) * width


@dataclass(frozen=True, slots=True)
class TinyDrafter(Checked):
    """A small drafter with weights, for the checks of the conformance kit.

    ``write`` references a function ``(target, path)`` that writes a drafter's file of random
    weights to ``path``, for the model in the file ``target``; empty = the drafter is part of that
    file. The target is a tiny model of ``family``, the one called ``model``; empty = any installed
    family's, and the family's first, or all installed ones that the drafter is part of.
    """

    write: str = ""
    family: str = ""
    model: str = ""

    def check(self) -> None:
        check_references(self, optional=("write",))


# -- drafting -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """The rows from which L lanes draft. Every tensor is on the device, integers are int64.

    tokens        [L]   the last chosen token of each lane, which no state holds yet
    positions     [L]   its position, so the number of committed positions
    slots         [L]
    seed          [L]   of the request's sampling, and
    temperature   [L]   float32, 0 = greedy: a drafter may rank by what sampling will prefer
    batch               ``L * DraftPlan.block`` rows, those of a lane side by side
    depth               tokens of each lane, one after another, that are of use: at most
                        ``DraftPlan.depth``, fewer where many lanes share a step

    Row j of a lane stands at the position of its token plus j, at most the last of the context;
    row 0 has the lane's token, the others ``DraftPlan.fill``. A row sees the committed positions
    and, in the arena, all rows of its lane; for other rules, replace ``batch.ancestors``. The rows
    are written to the arena only and are gone after the draft. A lane may be padding: it has the
    dummy slot, and what is proposed for it is dropped.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    seed: torch.Tensor
    temperature: torch.Tensor
    batch: StepBatch
    depth: int

    @property
    def lanes(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True, slots=True)
class Proposals:
    """What a drafter proposes for L lanes: D tokens deep, K candidates for each. D is
    ``DraftBlock.depth`` at least: what lies deeper is not used, and need not be computed.

    tokens    int64 [L, D, K]     ids of the target's vocabulary, the best first
    scores    float32 [L, D, K]   log-probabilities, given the tokens before; they do not rise from
                                  one candidate to the next, and -inf = there is none
    parents   int64 [L, D * K]    the candidate that each one follows, by its number d * K + k,
                                  -1 = the lane's own token; parents come before children

    Without ``parents``, any candidate may follow any one of the token before; a chain takes the
    first of each.
    """

    tokens: torch.Tensor
    scores: torch.Tensor
    parents: torch.Tensor | None = None


class ModelDrafter(Protocol):
    """A built drafter. Stateless: the state of sequences is in the view.

    All methods are captured in CUDA graphs: they read no tensor on the host, and equal shapes cause
    equal launches. They are also traced while kernels compile: state that is not written by an op
    must stay as it is while ``BuildContext.ops.launches_suppressed`` is true.
    """

    def extend(
        self, features: torch.Tensor | None, batch: StepBatch, view: StateView
    ) -> Sequence[Any]:
        """Write the state of the rows of a step, behind the target's forward.

        ``features`` bfloat16 [R, N * width] are what the plan asked for, ``None`` if nothing. As
        in ``Model.forward``, recurrent state of segments without drafts advances in place, and
        that of drafted segments stays. Returns what :meth:`commit` needs.
        """
        ...

    def commit(self, trace: Sequence[Any], kept: CommitBatch, view: StateView) -> None:
        """Advance recurrent state along the kept rows of drafted segments."""
        ...

    def draft(self, block: DraftBlock, view: StateView) -> Proposals:
        """Propose what follows each lane's token. Changes no state but the arena."""
        ...
