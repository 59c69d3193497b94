"""Plans the drafter ``mtp`` for a target whose file has a block for it. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kinfolk.config import ModelConfig
from kinfolk.descriptors import resolve
from kinfolk.draft_api import CANDIDATES, DraftPlan, TargetFacts
from kinfolk.errors import SettingsError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import Recurrent, RecurrentTensor, WeightPlan, WeightSpec
from kinfolk.spec.mtp.block import MTPBlock
from kinfolk.spec.reduced_head import head_tokens

PASSES: Final = 3
"""Tokens of a draft unless the user asks for another number: the block was trained for the first,
and each further pass is right less often than the one before."""

BLOCK_COUNT: Final = "nextn_predict_layers"
"""The key of the number of blocks, behind the architecture."""

HIDDEN_STATE: Final = "hidden"
"""The name of the state with the hidden state of the last committed row."""


@dataclass(frozen=True, slots=True)
class MTPConfig:
    """How the block is run.

    target          the target's configuration, of its own family
    block           the prefix of the block's tensors, ``blk.N``
    layer           the entry of its keys and values in the state plan; the hidden state is the next
    layer_builder   the reference of :class:`MTPBlock`
    post_norm       whether it reads hidden states behind the last norm, or before it
    own_embedding   whether it has an embedding of its own
    own_head        whether the head is loaded with it, or is the target's
    head_tokens     the tokens of the rows of a reduced head; ``None`` = all, or the first ones
    """

    target: ModelConfig
    block: str
    layer: int
    layer_builder: str
    post_norm: bool
    own_embedding: bool
    own_head: bool
    head_tokens: tuple[int, ...] | None = None

    def tensor(self, name: str) -> str:
        return f"{self.block}.nextn.{name}.weight"


def prepare(file: GGUFFile, target: TargetFacts) -> DraftPlan | None:
    """The plan of the block in ``file``, ``None`` if it has none or the family knows none.

    Raises :class:`ModelFormatError` for a block with a part missing,
    :class:`UnsupportedModelError` for several blocks, and :class:`SettingsError` for a bad option.
    """
    meta, config = file.metadata, target.config
    key = meta.arch_key(BLOCK_COUNT)
    blocks = meta.integer(key, default=0, minimum=0)
    if not blocks or not config.mtp_block:
        return None
    if blocks > 1:
        raise meta.unsupported(f"key {key!r} is {blocks}; only one block can draft")
    block: MTPBlock = resolve(config.mtp_block)
    prefix = f"blk.{config.layers}"
    projection = f"{prefix}.nextn.eh_proj.weight"
    if projection not in file.inventory:
        raise meta.fail(
            f"tensor {projection!r} is missing, while key {key!r} says that there is a block for "
            "multi-token prediction: the file was made without it",
            projection,
        )
    head, tokens, rows = _head(file, prefix, target)
    found = MTPConfig(
        target=config,
        block=prefix,
        layer=target.first_layer,
        layer_builder=block.layer,
        post_norm=_post_norm(target),
        own_embedding=f"{prefix}.nextn.embed_tokens.weight" in file.inventory,
        own_head=head is not None,
        head_tokens=tokens,
    )
    weights = [*block.weights(config, file.inventory), *nextn_weights(config, file.inventory)]
    passes = target.draft_tokens or PASSES
    return DraftPlan(
        weights=WeightPlan((*weights, *(() if head is None else (head,)))),
        state=(
            block.state(config, target.codec),
            Recurrent((RecurrentTensor(HIDDEN_STATE, (config.width,)),)),
        ),
        features=() if found.post_norm else (config.layers - 1,),
        final=found.post_norm,
        width=config.width,
        vocabulary=config.vocabulary,
        block=passes,
        depth=passes,
        columns=min(CANDIDATES, rows),
        config=found,
    )


def nextn_weights(target: ModelConfig, inventory: Inventory) -> Iterator[WeightSpec]:
    """What the drafter adds to the layer: both norms, the projection, the last norm, and the
    block's own embedding if the file has one."""
    width, prefix = target.width, f"blk.{target.layers}.nextn"
    yield WeightSpec(f"{prefix}.eh_proj.weight", (width, 2 * width))
    yield WeightSpec(f"{prefix}.enorm.weight", (width,), "vector")
    yield WeightSpec(f"{prefix}.hnorm.weight", (width,), "vector")
    last, table = f"{prefix}.shared_head_norm.weight", f"{prefix}.embed_tokens.weight"
    source = "" if last in inventory else "output_norm.weight"
    yield WeightSpec(last, (width,), "vector", source)
    if table in inventory:
        yield WeightSpec(table, (target.vocabulary, width), "embedding")


def _head(
    file: GGUFFile, prefix: str, target: TargetFacts
) -> tuple[WeightSpec | None, tuple[int, ...] | None, int]:
    """The head to load, ``None`` for the target's own; the tokens of its rows; how many it has."""
    inventory, vocabulary = file.inventory, target.config.vocabulary
    name, listed = f"{prefix}.nextn.shared_head_head.weight", f"{prefix}.nextn.d2t"
    wanted = _head_rows(target)
    if name in inventory:
        info = inventory[name]
        there = info.shape[0]
        tokens = None
        if listed in inventory:
            tokens = head_tokens(inventory, inventory[listed], vocabulary)
        if there != (vocabulary if tokens is None else len(tokens)):
            raise file.metadata.fail(
                f"tensor {name!r} has {there} rows, expected one for each of "
                + (f"{vocabulary} tokens" if tokens is None else f"{len(tokens)} of {listed!r}"),
                name,
            )
        rows, source = min(wanted or there, there), name
        tokens = None if tokens is None else tokens[:rows]
    elif wanted is not None and wanted < vocabulary:
        rows, tokens = wanted, None
        source = "output.weight" if "output.weight" in inventory else "token_embd.weight"
    else:
        return None, None, vocabulary
    spec = WeightSpec(name, (rows, target.config.width), source=source, rows=(0, rows))
    return spec, tokens, rows


# -- options --------------------------------------------------------------------------------------


def _post_norm(target: TargetFacts) -> bool:
    value = target.options.get("hidden", "post")
    if value not in ("post", "pre"):
        raise SettingsError(
            f"--draft-option hidden={value}: must be post or pre: hidden states behind the model's "
            "last norm, or before it"
        )
    return value == "post"


def _head_rows(target: TargetFacts) -> int | None:
    """The rows of a reduced head that the user wants: the first tokens of the vocabulary."""
    value = target.options.get("head")
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise SettingsError(
            f"--draft-option head={value}: must be a whole number, at least 1: only so many of the "
            "first tokens of the vocabulary are drafted"
        )
    return int(value)
