"""Pre-tokenizer, chat format and cards of the family."""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import ChatFormat, ModelCard, PreTokenizer, SamplingDefaults
from kinfolk.text.patterns import words

PRETOKENIZERS: Final = (PreTokenizer("qwen2", (words(),)),)

CHAT: Final = ChatFormat(
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    think=("<think>", "</think>"),
    tool_call=("<tool_call>", "</tool_call>"),
    role_aliases={"developer": "system"},
)

CARDS: Final = tuple(
    ModelCard(f"qwen3-{size}b", SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95))
    for size in ("0.6", "1.7", "4", "8", "14", "32")
)
