"""The two layouts of DFlash files: names of keys and tensors.

Layout B is that of llama.cpp: architecture ``dflash``, keys ``dflash.*``. Layout A is older: the
architecture is that of the model with a suffix, keys are ``<architecture>.dflash.*``. Inside
kinfolk, weights have the names of layout B. What a drafter consists of is told by its tensors, as
keys of published files are often wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.gguf.metadata import Metadata

ARCHITECTURE: Final = "dflash"
"""``general.architecture`` of layout B."""

FC: Final = "fc.weight"
CONTEXT_NORM: Final = "enc.output_norm.weight"
FEATURE_NORMS: Final = "enc.aux_norm.weight"
OUTPUT_NORM: Final = "output_norm.weight"
EMBEDDING_TENSOR: Final = "token_embd.weight"
HEAD_TENSOR: Final = "output.weight"
DRAFT_IDS: Final = "d2t"
ROPE_DIVISORS: Final = "rope_freqs.weight"
SELECTOR: Final = ("selector_predecessor.weight", "selector_successor.weight")
SELECTOR_HIDDEN: Final = "selector_hidden.weight"


_IN_BLOCK: Final = re.compile(r"(blk\.\d+\.)(.+)")


@dataclass(frozen=True, slots=True)
class FileLayout:
    """``prefix`` stands before the keys that only drafters have. ``tensors`` are the names in files
    of tensors that layout B calls otherwise; ``in_block`` those after ``blk.N.``.

    ``counts_inputs``: the list of feature layers counts from 1, so that a number is that of the
    layer that reads the features. ``feature_norms`` is the name of one of several norms that
    layout B has in one tensor.
    """

    name: str
    prefix: str
    feature_layers: str
    mask_token: str
    counts_inputs: bool
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    in_block: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    feature_norms: str = ""

    def find(self, inventory: Inventory, name: str) -> TensorInfo | None:
        """The tensor that layout B calls ``name``; ``None`` if the file lacks it."""
        match = _IN_BLOCK.fullmatch(name)
        names = self.tensors.get(name, (name,))
        if match is not None:
            others = self.in_block.get(match[2], (match[2],))
            names = tuple(f"{match[1]}{other}" for other in others)
        return next((inventory[other] for other in names if other in inventory), None)

    def tensor(self, inventory: Inventory, name: str) -> TensorInfo:
        """As :meth:`find`. Raises :class:`ModelFormatError` for a tensor that is missing."""
        found = self.find(inventory, name)
        if found is None:
            raise ModelFormatError(
                f"tensor {name!r} is missing; a drafter of the {self.name} layout has it, so the "
                "file is incomplete or was made for another runtime",
                path=inventory.path,
                key=name,
            )
        return found


LAYOUT_B: Final = FileLayout(
    name="llama.cpp",
    prefix="",
    feature_layers="target_layers",
    mask_token="tokenizer.ggml.mask_token_id",
    counts_inputs=True,
)
LAYOUT_A: Final = FileLayout(
    name="older",
    prefix="dflash.",
    feature_layers="dflash.target_layer_ids",
    mask_token="",
    counts_inputs=False,
    tensors=MappingProxyType(
        {
            FC: ("dflash.fc.weight", "dflash_fc.weight"),
            CONTEXT_NORM: ("dflash.hidden_norm.weight", "dflash_hidden_norm.weight"),
        }
    ),
    in_block=MappingProxyType(
        {"ffn_norm.weight": ("ffn_norm.weight", "post_attention_norm.weight")}
    ),
    feature_norms="dflash.aux_hidden_norm.{}.weight",
)


def layout_of(meta: Metadata, inventory: Inventory) -> FileLayout:
    """The layout of a file. Raises :class:`UnsupportedModelError` for a file of something else."""
    if meta.architecture == ARCHITECTURE:
        return LAYOUT_B
    if LAYOUT_A.find(inventory, FC) is not None:
        return LAYOUT_A
    raise meta.unsupported(
        f"this is no DFlash drafter: its architecture is {meta.architecture!r}, not "
        f"{ARCHITECTURE!r}, and it has no tensor 'dflash.fc.weight', as drafters of other "
        "architectures do"
    )


_FOREIGN: Final = (
    (re.compile(r"markov_w\d.*|conf_proj.*|dflash\.dspark\..*"), "DSpark"),
    (re.compile(r"dflash\.domino\..*"), "Domino"),
)
_OTHER_LAYERS: Final = re.compile(
    r"blk\.\d+\.(attn_sinks.*|post_ffw_norm.*|layer_output_scale.*|.*\.bias)"
)


def refuse_other_drafters(inventory: Inventory, layout: FileLayout) -> None:
    """Refuse, by the name of a tensor, drafters that compute something else.

    Raises :class:`UnsupportedModelError`. Without the parts that are refused the drafter would
    run, with few of its tokens accepted, and nobody would see why.
    """
    where = inventory.path or "the drafter"
    for name in inventory:
        for pattern, kind in _FOREIGN:
            if pattern.fullmatch(name):
                raise UnsupportedModelError(
                    f"{where}: tensor {name!r} is part of a {kind} head, which this runtime does "
                    "not implement; use a drafter that is plain DFlash, or DFlash 2"
                )
        sandwich = layout is LAYOUT_B and name.endswith(".post_attention_norm.weight")
        if sandwich or _OTHER_LAYERS.fullmatch(name):
            raise UnsupportedModelError(
                f"{where}: tensor {name!r} belongs to a drafter whose layers are built otherwise "
                "than those of DFlash; this runtime does not implement them"
            )
