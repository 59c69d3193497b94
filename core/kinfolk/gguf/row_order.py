"""In which order files hold the rows of query and key projections, which no key of theirs states.

A rotary embedding turns the dimensions of a head in pairs: neighbours 2i and 2i + 1, or i and
i + half. Converters order the rows for the way that llama.cpp computes (its function
``llama_model_rope_type``: ``NORM`` or ``NEOX``), whatever the checkpoint's order was.
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
"""Architectures whose files hold neighbours. Most others hold halves; one that is in no list of
ours may do either."""
