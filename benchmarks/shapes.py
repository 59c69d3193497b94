"""Released shapes that benchmarks measure and that no family in this repository provides."""

from __future__ import annotations

from kinfolk.convert.dense import DenseShape, outline
from kinfolk.descriptors import ReleasedShape
from kinfolk.gguf.file_types import MIXES
from kinfolk.synth.tiny import tiny_vocabulary

QWEN3_8B = DenseShape(151936, 4096, 40960, 36, 32, 8, 128, 12288, 1e6, head_norms=True)

MORE = (
    ReleasedShape(
        name="qwen3-8b",
        architecture="qwen3",
        layers=QWEN3_8B.layers,
        outline=lambda layers: outline(QWEN3_8B),
        vocabulary=tiny_vocabulary("qwen2", QWEN3_8B.vocabulary),
        mixes={"q4_k_m": MIXES["q4_k_m"]},
    ),
)
"""The shape of benchmarks of examples/kinfolk-qwen3, a family in a distribution of its own."""
