"""A text that a model reads for the attention of its last rows, instead of to go on with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from kinfolk.ops.binding import Ops
from kinfolk_kernels.codecs import Stored, numbers
from kinfolk_kernels.flash_prefill.op import FLASH_PREFILL, FlashPrefillArguments
from kinfolk_kernels.paged_attention.epilogue import Epilogue, Mixed, finish
from kinfolk_kernels.paged_attention.op import GatedAttentionArguments
from kinfolk_kernels.rows import CHUNK_POSITIONS

AttentionFn = Callable[..., Mixed]
"""``gated_attention``, bound to a layer."""

SCORING_ROWS: Final = 8
"""Last rows of a text whose attention scores its tokens."""

_CHUNKS_AT_ONCE: Final = 128
"""Chunks whose keys are turned back at once: fewer take less memory, and more launches."""


class PromptReading:
    """Scores the tokens of one text at a time by the attention of its last rows.

    A model that is built with it (``BuildContext.reading``) attends as ever, and this looks at each
    layer without a window while it runs the last slice of a text. Steps have one sequence of
    certain rows, whose chunks are all on the device. ``sparse``: these layers attend to the blocks
    of keys that matter (``flash_prefill``) and not to all, if a back end but the reference can do
    that.

    Queries and keys are compared without their rotary embedding: what matters is whether a token is
    about the question, not how far from it. The score of a token is the largest share of attention
    of any layer and head, averaged over the last rows.
    """

    def __init__(self, *, sparse: bool = False) -> None:
        self.layers = 0
        self.length = 0
        self._sparse = sparse
        self._start = 0
        self._last = False
        self._shares: torch.Tensor | None = None

    def begin(self, start: int, rows: int, length: int) -> None:
        """The next step runs so many rows of a text of ``length`` tokens. The last slice has at
        least ``SCORING_ROWS``, or is all of the text."""
        self._start, self.length, self._last = start, length, start + rows == length
        self._shares = None

    def scores(self) -> torch.Tensor:
        """float32 [length], on the device; after the step of the last slice."""
        shares, self._shares = self._shares, None
        if shares is None:
            raise RuntimeError("no layer has looked at the last rows of the text")
        return shares.mean(0)

    def attention(
        self,
        dense: AttentionFn,
        arguments: GatedAttentionArguments,
        rope_tables: tuple[torch.Tensor, torch.Tensor] | None,
        ops: Ops,
    ) -> AttentionFn:
        """What a layer calls instead of ``dense``, with the same operands."""
        if arguments.window is not None:
            return dense
        if arguments.keys.dtype is None:
            raise ValueError(f"keys stored as {arguments.keys.format} cannot be looked at")
        self.layers += 1
        flash = self._flash_prefill(arguments, ops)

        def attend(
            q: torch.Tensor,
            pools: tuple[Stored, Stored],
            arenas: Any,
            rows: Any,
            table: Any,
            epilogue: Epilogue,
        ) -> Mixed:
            blocks = table.blocks[0, : table.lengths[0]]
            if self._last:
                self._look(q[-SCORING_ROWS:], pools[0], blocks.long(), arguments.scale, rope_tables)
            if flash is None:
                return dense(q, pools, arenas, rows, table, epilogue)
            return finish(flash(q, pools, blocks, self._start, self.length), epilogue, q.dtype)

        return attend

    def _flash_prefill(self, arguments: GatedAttentionArguments, ops: Ops) -> Any:
        """The op of a layer; ``None`` if attention is dense."""
        if not self._sparse:
            return None
        wanted = FlashPrefillArguments(
            *(arguments.heads, arguments.keys, arguments.values, arguments.scale),
            *(arguments.dtype, arguments.device),
        )
        bound = ops.bind(FLASH_PREFILL, wanted)
        # The reference goes row by row: dense attention is faster.
        return None if getattr(bound, "func", None) is FLASH_PREFILL.reference else bound

    def _look(
        self,
        q: torch.Tensor,
        pool: Stored,
        blocks: torch.Tensor,
        scale: float,
        rope_tables: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        rows, heads, dim = q.shape
        places = torch.arange(self.length, device=q.device)
        q = without_rope(q.float(), places[-rows:], rope_tables)
        products = []
        for first in range(0, len(blocks), _CHUNKS_AT_ONCE):
            keys = _keys(pool, blocks[first : first + _CHUNKS_AT_ONCE])
            here = places[first * CHUNK_POSITIONS :][: len(keys)]
            keys = without_rope(keys[: len(here)], here, rope_tables)
            group = q.view(rows, keys.shape[1], -1, dim)
            products.append(torch.einsum("rhgd,nhd->rhgn", group, keys))
        logits = torch.cat(products, -1).view(rows, heads, -1) * scale
        unseen = places > places[-rows:, None]
        shares = logits.masked_fill(unseen[:, None], -torch.inf).softmax(-1).amax(1)
        self._shares = shares if self._shares is None else torch.maximum(self._shares, shares)


def _keys(pool: Stored, blocks: torch.Tensor) -> torch.Tensor:
    """float32 [n * 64, heads, dim] of n blocks."""
    return numbers(pool, lambda plane: plane[blocks]).float().transpose(1, 2).flatten(0, 1)


def without_rope(
    x: torch.Tensor, positions: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor] | None
) -> torch.Tensor:
    """Vectors [n, heads, dim] of tokens at ``positions`` [n] as they were before their rotary
    embedding."""
    if tables is None:
        return x
    cos, sin = (table[positions][:, None].float() for table in tables)
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    size = cos.square() + sin.square()
    turned = [(a * cos + b * sin) / size, (b * cos - a * sin) / size, x[..., 2 * half :]]
    return torch.cat(turned, -1)
