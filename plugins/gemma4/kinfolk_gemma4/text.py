"""Pre-tokenizers and chat format of the family."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kinfolk.descriptors import ChatFormat, ObjectArguments, PreTokenizer, ToolSyntax
from kinfolk.text.pretokenizers import SENTENCEPIECE

TOKENIZER: Final = "gemma4"

LINES: Final = PreTokenizer(TOKENIZER, (r"[^\n]+|\n+",), symbols="characters", needs_bos=True)
"""Cuts text into lines and runs of line ends. ``needs_bos``, as some early files state no BOS."""

PRETOKENIZERS: Final = (LINES, replace(SENTENCEPIECE, needs_bos=True))

CHAT: Final = ChatFormat(
    # After a call the model writes <|tool_response> and waits for the result.
    stop_tokens=("<turn|>", "<|tool_response>", "<eos>"),
    keep_tokens=("</s>",),
    think=("<|channel>thought", "<channel|>"),
    tool_call=("<|tool_call>", "<tool_call|>"),
    tool_syntax=ToolSyntax(ObjectArguments(quote='<|"|>'), name=("call:", "")),
    role_aliases={"developer": "system"},
)

VISIBLE: Final = (
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
)
"""Special tokens whose text is part of answers, as parsers of answers need it."""
