"""Protocols of a step's rows and block tables, as ops read them.

R rows, B sequences; rows of one sequence are contiguous. Tensors are int64 unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from kinfolk_kernels.row_layout import RowLayout

CHUNK_POSITIONS = 64
"""Positions in a block of a pool."""


class Table(Protocol):
    """Resident blocks of each sequence, in logical order: ``blocks`` and ``chunks`` int32 [B, N],
    ``length`` int32 [B]."""

    @property
    def blocks(self) -> torch.Tensor: ...
    @property
    def chunks(self) -> torch.Tensor: ...
    @property
    def length(self) -> torch.Tensor: ...
    @property
    def lengths(self) -> Sequence[int]: ...


class Rows(Protocol):
    """The rows of a step. Store rows of -1 are padding."""

    @property
    def positions(self) -> torch.Tensor: ...
    @property
    def sequence_of_row(self) -> torch.Tensor: ...
    @property
    def parent_row(self) -> torch.Tensor: ...
    @property
    def limit(self) -> torch.Tensor: ...
    @property
    def ancestors(self) -> torch.Tensor: ...
    @property
    def arena_row(self) -> torch.Tensor: ...
    @property
    def write_row(self) -> torch.Tensor: ...
    @property
    def slot_of_sequence(self) -> torch.Tensor: ...
    @property
    def store_rows(self) -> torch.Tensor: ...
    @property
    def store_slots(self) -> torch.Tensor: ...
    @property
    def layout(self) -> RowLayout: ...
