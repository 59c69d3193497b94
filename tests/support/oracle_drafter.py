"""A drafter with weights and state that knows the future, for tests of the engine.

Its weights are texts. Its state is what the engine has committed: a paged layer with the token of
each position, and a recurrent layer with the number of tokens and the last one. It proposes only
where both say the same and are the beginning of one of its texts, so a chunk, slot or checkpoint
that is not the sequence's own costs every draft behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import torch

from kinfolk.descriptors import DrafterSpec
from kinfolk.draft_api import DraftPlan, Proposals
from kinfolk.loader import Provided
from kinfolk.plans import (
    Codec,
    Paged,
    Recurrent,
    RecurrentTensor,
    Section,
    Shared,
    WeightPlan,
    WeightSpec,
)

ARCHITECTURE = "oracle-draft"
NOTHING = -1


@dataclass(frozen=True)
class Oracle:
    """``wrong``: every so many tokens deep, no candidate is right, 0 = never. ``columns``
    candidates, of which the one in column ``depth % columns`` is right, unless ``chain``: then it
    is always the first. ``window`` is that of the paged layer."""

    layer: int
    depth: int
    columns: int
    wrong: int
    chain: bool
    window: int | None


def write(path, futures, **keys):
    """Write a drafter's file that knows ``futures``, lists of tokens."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    for name, value in keys.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"{ARCHITECTURE}.{name}", value)
    length = max(map(len, futures))
    rows = [[*future, *[NOTHING] * (length - len(future))] for future in futures]
    writer.add_tensor("futures", np.array(rows, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def spec(**fields):
    given = {
        "architectures": ("oracle-*",),
        "prepare": "oracle_drafter:prepare",
        "build": "oracle_drafter:OracleDrafter",
        **fields,
    }
    given = {"name": "oracle", **given}
    return Provided(DrafterSpec(**given), "tests", "the tests")


def prepare(file, facts):
    meta = file.metadata
    if meta.architecture != ARCHITECTURE:
        return None

    def number(name, default):
        return meta.integer(meta.arch_key(name), default=default, minimum=0)

    depth, columns = number("depth", 15), number("columns", 1)
    config = Oracle(
        layer=facts.first_layer,
        depth=depth,
        columns=columns,
        wrong=number("wrong", 0),
        chain=columns == 1 or meta.boolean(meta.arch_key("chain"), default=False),
        window=number("window", 0) or None,
    )
    layers = facts.config.layers
    codec = Codec("f32")
    return DraftPlan(
        WeightPlan((WeightSpec("futures", file.inventory["futures"].shape, "vector"),)),
        state=(
            Paged((Section("token", 1, 4, codec),), config.window),
            Recurrent((RecurrentTensor("seen", (2,)),)),
            *(Shared(layer) for layer in range(number("shared", 0))),
        ),
        features=(number("feature", layers - 1), 0),
        final=True,
        block=depth + 1,
        depth=depth,
        columns=columns,
        own_trees=meta.boolean(meta.arch_key("own_trees"), default=False),
        fill=number("fill", 0),
        width=number("target_width", 0) or None,
        vocabulary=number("vocabulary", 0) or None,
        config=config,
    )


def prepare_own(file, facts):
    """The plan of a drafter in the target's own file, which knows no future."""
    weight = WeightSpec("norm", (facts.config.width,), "vector", "output_norm.weight")
    config = Oracle(facts.first_layer, 4, 1, 0, True, None)
    entry = (Recurrent((RecurrentTensor("seen", (2,)),)),)
    return DraftPlan(WeightPlan((weight,)), entry, final=True, block=5, depth=4, config=config)


class OwnDrafter:
    """Proposes the last chosen token again."""

    def __init__(self, plan, weights, context, target):
        assert weights.tensor("norm").shape == context_shape(target)
        self.depth = plan.depth

    def extend(self, features, batch, view):
        return ()

    def commit(self, trace, kept, view):
        """There is nothing to advance."""

    def draft(self, block, view):
        tokens = block.tokens[:, None, None].expand(-1, self.depth, 1)
        return Proposals(tokens, torch.zeros(tokens.shape))


def context_shape(target):
    return target.embed(torch.tensor([0])).shape[1:]


class OracleDrafter:
    def __init__(self, plan, weights, context, target):
        self.oracle: Oracle = plan.config
        self.futures = weights.tensor("futures").long()
        self.parts = len(plan.features) + plan.final
        self.context = context.context

    # -- state

    def extend(self, features, batch, view):
        assert features.dtype == torch.bfloat16
        assert features.shape[0] == batch.rows
        assert features.shape[1] % self.parts == 0
        paged = view.paged(self.oracle.layer)
        rows = batch.tokens.float()[:, None].expand(-1, 4)
        write = batch.write_row[paged.pool_index]
        arena = batch.arena_row
        in_arena = arena >= 0
        # What is written twice goes to the dummy block, or to where it was.
        self._store(paged.pool("token"), torch.where(in_arena, 0, write), rows)
        if batch.layout.traits.trees and bool(in_arena.any()):
            self._store(paged.arena("token"), arena[in_arena], rows[in_arena])
        seen = view.recurrent(self.oracle.layer + 1)["seen"]
        marks = torch.stack((batch.positions + 1, batch.tokens), 1).float()
        for first, count, slot, drafted in batch.layout.spans.tolist():
            if count and not drafted:
                seen[slot] = marks[first + count - 1]
        for row, slot in zip(batch.store_rows.tolist(), batch.store_slots.tolist(), strict=True):
            if row >= 0:
                seen[slot] = marks[row]
        return (marks,)

    def _store(self, where, places, rows):
        where[places // 64, 0, places % 64] = rows

    def commit(self, trace, kept, view):
        (marks,) = trace
        seen = view.recurrent(self.oracle.layer + 1)["seen"]
        for path, count, slot in zip(
            kept.path, kept.n_keep.tolist(), kept.slot.tolist(), strict=True
        ):
            if count:
                seen[slot] = marks[path[count - 1]]

    # -- drafting

    def draft(self, block, view):
        assert block.batch.rows == block.lanes * (self.oracle.depth + 1)
        assert int(block.batch.positions.max()) < self.context
        future = torch.stack([self._future(block, view, lane) for lane in range(block.lanes)])
        depth, columns = self.oracle.depth, self.oracle.columns
        future = future[:, :depth, None]
        step = torch.arange(depth)[:, None]
        column = torch.arange(columns)
        right = torch.zeros_like(step) if self.oracle.chain else step % columns
        wrong = torch.tensor(self.oracle.wrong or depth + 1)
        right = torch.where((step + 1) % wrong == 0, columns, right)
        known = future >= 0
        tokens = torch.where(known, (future + 1 + column) % 200, 0)
        # No wrong candidate may be right by chance.
        tokens = torch.where(tokens == future, (tokens + columns + 1) % 200, tokens)
        tokens = torch.where(known & (column == right), future, tokens)
        scores = -(1.0 + column.float()).expand(block.lanes, depth, columns).clone()
        return Proposals(tokens, scores)

    def _future(self, block, view, lane):
        """What follows the lane's token in a text that begins with all it has seen, padded with
        ``NOTHING``."""
        nothing = torch.full((self.oracle.depth,), NOTHING)
        length, slot = int(block.positions[lane]), int(block.slots[lane])
        if not slot:
            return nothing
        paged = view.paged(self.oracle.layer)
        table = block.batch.tables[paged.pool_index]
        tokens = torch.full((self.context,), NOTHING)
        for index in range(int(table.length[lane])):
            first = int(table.chunks[lane, index]) * 64
            stored = paged.pool("token")[int(table.blocks[lane, index]), 0, :, 2].long()
            tokens[first : first + 64] = stored[: self.context - first]
        first = 0 if paged.window is None else max(0, length - paged.window)
        history = [*tokens[first:length].tolist(), int(block.tokens[lane])]
        seen = view.recurrent(self.oracle.layer + 1)["seen"][slot].tolist()
        if seen != [length, history[-2]]:
            return nothing
        for text in self.futures.tolist():
            if text[first : length + 1] == history:
                found = text[length + 1 : length + 1 + self.oracle.depth]
                return torch.tensor([*found, *[NOTHING] * (self.oracle.depth - len(found))])
        return nothing
