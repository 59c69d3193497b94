"""The contract of the hook ``verify``: its arguments and its answer.

n rows of float32 logits [n, V]; L sampled sequences of at most T rows; a step without drafts has
T = 1. Every tensor is on the device of the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

AcceptDrafts = Callable[
    ["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor"],
    tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"],
]
"""The op ``accept_drafts``, bound."""

Draw = Callable[["torch.Tensor", Any], tuple["torch.Tensor", "torch.Tensor"]]
"""The op ``sample``, bound: logits and :class:`RowSampling` to tokens int64 [n], and bool [n]
whether the logits of each row are finite."""


class Edits(Protocol):
    """Changes of logits before sampling: penalties and bias."""

    def apply(self, logits: torch.Tensor, rows: RowSampling) -> torch.Tensor:
        """The changed logits float32 [n, V], a copy."""

    def note(self, emitted: torch.Tensor) -> None:
        """Count the tokens that the step emits, int64 [L, T], padded with -1."""


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Sampling parameters [n] of n rows, and the op that draws.

    ``seed`` and ``position``, that of the token to be chosen, determine the noise of tokens.
    ``greedy``: every row is. ``largest_top_k`` tokens are sorted, 0 = all of them.
    """

    greedy: bool
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    largest_top_k: int
    edits: Edits | None
    draw: Draw


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """logits float32 [n, V]; rows int64 [L, T]: index into ``logits`` of each row, -1 = padding."""

    logits: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens int64 [L, T]: the pending token, then drafts; parents int64 [L, T]: index within the
    sequence of each row's predecessor, -1 for the first, -2 for padding; budget int64 [L]: most
    rows that may be kept; accept_drafts: the op."""

    tokens: torch.Tensor
    parents: torch.Tensor
    budget: torch.Tensor
    accept_drafts: AcceptDrafts


@dataclass(frozen=True, slots=True)
class Kept:
    """path int64 [L, T]: kept rows of each sequence in order, padded with -1; n_keep int64 [L], at
    least 1; next int64 [L]: the token chosen at the last kept row. A sequence emits the tokens of
    path[1:] and then ``next``. finite bool [n]: whether each row of logits is finite; ``None``
    lets the engine compute it.

    Raises :class:`ValueError` for tensors of another type, shape or device; no number is read.
    """

    path: torch.Tensor
    n_keep: torch.Tensor
    next: torch.Tensor
    finite: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name, dimensions in (("path", 2), ("n_keep", 1), ("next", 1)):
            tensor = getattr(self, name)
            kind = str(getattr(tensor, "dtype", type(tensor).__name__))
            if kind != "torch.int64":
                raise ValueError(f"Kept.{name} is of {kind}; it must be an int64 tensor")
            if tensor.dim() != dimensions:
                shape = list(tensor.shape)
                raise ValueError(f"Kept.{name} is {shape}; it must have {dimensions} dimensions")
        counts = {name: getattr(self, name).shape[0] for name in ("path", "n_keep", "next")}
        if len(set(counts.values())) > 1:
            raise ValueError(f"the tensors of Kept are of different lengths: {counts}")
        devices = {str(tensor.device) for tensor in (self.path, self.n_keep, self.next)}
        if len(devices) > 1:
            raise ValueError(f"the tensors of Kept are on {' and '.join(sorted(devices))}")

    def problem(self, step: VerifyStep) -> str:
        """Why this cannot be the answer for ``step``; empty if it can. Reads no number."""
        if self.path.shape != step.rows.shape:
            return f"Kept.path is {list(self.path.shape)}, the rows are {list(step.rows.shape)}"
        device = step.logits.device
        if self.path.device != device:
            return f"the tensors of Kept are on {self.path.device}, the logits on {device}"
        finite, rows = self.finite, step.logits.shape[0]
        if finite is None:
            return ""
        kind = str(getattr(finite, "dtype", type(finite).__name__))
        if kind != "torch.bool" or list(finite.shape) != [rows] or finite.device != device:
            return f"Kept.finite is no bool tensor [{rows}] on {device}"
        return ""
