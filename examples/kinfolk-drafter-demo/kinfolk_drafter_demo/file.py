"""The drafter's file: what is read from it, before any weight is, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kinfolk.draft_api import MAX_PROPOSED, DraftPlan, TargetFacts
from kinfolk.gguf.output import GGUFOutput, OutputTensor
from kinfolk.plans import Recurrent, RecurrentTensor, WeightPlan, WeightSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kinfolk.gguf.file import GGUFFile

ARCHITECTURE: Final = "recurrent-draft"

MIX: Final = "mix.weight"
OUT: Final = "out.weight"
TOKEN_NORM: Final = "token_norm.weight"

COLUMNS: Final = 4
"""Candidates for each token; a chain takes the first, a tree the most likely ones."""

STATE: Final = "feature"

EPS: Final = 1e-6
"""Of the norm, in files that this package writes."""

_F32: Final = 0


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """``layer``: where in the state the head's entry is; ``hidden``: numbers of its hidden rows."""

    layer: int
    width: int
    hidden: int
    eps: float


def prepare(file: GGUFFile, facts: TargetFacts) -> DraftPlan | None:
    """What the head needs of a target; ``None`` if the file has another architecture."""
    meta = file.metadata
    if meta.architecture != ARCHITECTURE:
        return None

    def size(name: str, most: int) -> int:
        return meta.integer(meta.arch_key(name), minimum=1, maximum=most)

    width, hidden = size("embedding_length", 1 << 20), size("feed_forward_length", 1 << 20)
    depth = size("depth", MAX_PROPOSED)
    key = meta.arch_key("attention.layer_norm_rms_epsilon")
    config = HeadConfig(facts.first_layer, width, hidden, meta.number(key, above=0, below=1))
    return DraftPlan(
        WeightPlan(
            (
                WeightSpec(MIX, (hidden, 2 * width)),
                WeightSpec(OUT, (width, hidden)),
                WeightSpec(TOKEN_NORM, (width,), "vector"),
            )
        ),
        state=(Recurrent((RecurrentTensor(STATE, (width,)),)),),
        final=True,
        width=width,
        vocabulary=size("vocab_size", 1 << 30),
        depth=depth,
        columns=COLUMNS,
        config=config,
    )


def write(
    path: Path,
    tensors: Mapping[str, npt.NDArray[np.float32]],
    *,
    vocabulary: int,
    depth: int,
) -> None:
    """Write a drafter's file; the sizes are those of the tensors."""
    keys = {
        "embedding_length": int(tensors[OUT].shape[0]),
        "feed_forward_length": int(tensors[OUT].shape[1]),
        "vocab_size": vocabulary,
        "depth": depth,
        "attention.layer_norm_rms_epsilon": EPS,
    }
    metadata: dict[str, object] = {"general.architecture": ARCHITECTURE}
    metadata |= {f"{ARCHITECTURE}.{key}": value for key, value in keys.items()}
    layouts = [OutputTensor(name, t.shape, _F32, t.nbytes) for name, t in tensors.items()]
    with GGUFOutput(path, metadata, layouts, overwrite=True) as output:
        for name, tensor in tensors.items():
            output.write(name, tensor.astype("<f4").reshape(-1).view("u1"))
