"""Rope row order of GGUF files: how query and key rows pair up, by architecture.

A rotary embedding rotates pairs of dimensions of a head: neighbours (2i, 2i + 1), or halves
(i, i + half). No key of the file states which. Converters order the rows as llama.cpp expects them
(``llama_model_rope_type``: ``NORM`` = neighbours, ``NEOX`` = halves).
"""

from __future__ import annotations

from typing import Final

NEIGHBOURS: Final = frozenset(
    (
        "arcee",
        "arctic",
        "baichuan",
        "bailingmoe",
        "chameleon",
        "cohere2",
        "command-r",
        "deci",
        "deepseek",
        "ernie4_5",
        "ernie4_5-moe",
        "granite",
        "granitehybrid",
        "granitemoe",
        "internlm2",
        "llada",
        "llama",
        "llama-embed",
        "llama4",
        "maincoder",
        "minicpm",
        "mistral3",
        "olmo",
        "smollm3",
        "xverse",
    )
)
"""Architectures whose rows pair as neighbours. Most others pair as halves; an architecture unknown
to kinfolk may do either."""
