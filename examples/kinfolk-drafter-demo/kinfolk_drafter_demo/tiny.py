"""A small drafter of random weights, for ``kinfolk check``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinfolk.gguf.file import GGUFFile
from kinfolk_drafter_demo.file import MIX, OUT, TOKEN_NORM
from kinfolk_drafter_demo.file import write as write_file

HIDDEN = 48
DEPTH = 4


def write(target: Path, path: Path) -> None:
    """Write a drafter's file for the model in ``target``."""
    with GGUFFile.open(target) as file:
        meta = file.metadata
        width = meta.integer(meta.arch_key("embedding_length"))
        vocabulary = len(meta.strings("tokenizer.ggml.tokens"))
    source = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return source.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)

    norm = 1 + 0.3 * source.standard_normal(width)
    tensors = {
        MIX: matrix(HIDDEN, 2 * width),
        OUT: matrix(width, HIDDEN),
        TOKEN_NORM: norm.astype(np.float32),
    }
    write_file(path, tensors, vocabulary=vocabulary, depth=DEPTH)
