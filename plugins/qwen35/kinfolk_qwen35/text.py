"""Pre-tokenizers and chat format of the family.

Both patterns are those of the published tokenizers; ``qwen35`` differs from ``qwen2`` in counting
combining marks as parts of words. Transformers brings text into the normal form NFC first; this
does not, as llama.cpp, so decomposed letters get other tokens here.
"""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import ChatFormat, PreTokenizer, TaggedArguments, ToolSyntax
from kinfolk.text.patterns import words

PRETOKENIZERS: Final = (
    PreTokenizer("qwen35", (words(marks=True),)),
    PreTokenizer("qwen2", (words(),)),
)

CHAT: Final = ChatFormat(
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    think=("<think>", "</think>"),
    tool_call=("<tool_call>", "</tool_call>"),
    tool_syntax=ToolSyntax(
        name=("<function=", ">"),
        arguments=TaggedArguments(
            key=("<parameter=", ">"),
            value=("", "</parameter>"),
            end="</function>",
            padding="\n",
        ),
    ),
    role_aliases={"developer": "system"},
)
