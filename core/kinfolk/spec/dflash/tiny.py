"""A small DFlash drafter of random weights in layout B, for the checks of the conformance kit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, OutputTensor
from kinfolk.spec.dflash.layouts import ARCHITECTURE, CONTEXT_NORM, FC, LAYOUT_B, OUTPUT_NORM

_LAYERS: Final = 2
_WINDOW: Final = 40
_DIM: Final = 32
_QUERIES: Final = 2 * _DIM
_FEED_FORWARD: Final = 96
_F32: Final = 0


def write(target: Path, path: Path) -> None:
    """Write a drafter's file for the model in ``target``: a sliding layer and a full one, over
    features of the model's first and last layers."""
    with GGUFFile.open(target) as file:
        meta = file.metadata
        width = meta.integer(meta.arch_key("embedding_length"))
        depth = meta.integer(meta.arch_key("block_count"))
        vocabulary = len(meta.strings("tokenizer.ggml.tokens"))
    keys: dict[str, object] = {
        "block_count": _LAYERS,
        "embedding_length": width,
        "vocab_size": vocabulary,
        "attention.sliding_window": _WINDOW,
        "attention.sliding_window_pattern": [True, False],
        "rope.freq_base": 10_000.0,
        "block_size": 5,
        # This layout counts the inputs of layers.
        LAYOUT_B.feature_layers: [1, depth],
    }
    metadata: dict[str, object] = {"general.architecture": ARCHITECTURE}
    metadata |= {f"{ARCHITECTURE}.{key}": value for key, value in keys.items()}
    metadata[LAYOUT_B.mask_token] = vocabulary - 1
    shapes = _shapes(width)
    layouts = [OutputTensor(name, s, _F32, 4 * int(np.prod(s))) for name, s in shapes.items()]
    source = np.random.default_rng(0)
    with GGUFOutput(path, metadata, layouts, overwrite=True) as output:
        for name, shape in shapes.items():
            numbers = source.standard_normal(shape)
            numbers = 1 + 0.3 * numbers if len(shape) == 1 else numbers * shape[1] ** -0.5
            output.write(name, numbers.astype("<f4").reshape(-1).view(np.uint8))


def _shapes(width: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        FC: (width, 2 * width),
        CONTEXT_NORM: (width,),
        OUTPUT_NORM: (width,),
    }
    for layer in range(_LAYERS):
        parts = {
            "attn_norm": (width,),
            "ffn_norm": (width,),
            "attn_q": (_QUERIES, width),
            "attn_k": (_DIM, width),
            "attn_v": (_DIM, width),
            "attn_output": (width, _QUERIES),
            "attn_q_norm": (_DIM,),
            "attn_k_norm": (_DIM,),
            "ffn_gate": (_FEED_FORWARD, width),
            "ffn_up": (_FEED_FORWARD, width),
            "ffn_down": (width, _FEED_FORWARD),
        }
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in parts.items()}
    return shapes
