"""How the family's text is cut, and how its turns are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kinfolk.descriptors import ChatFormat, ObjectArguments, PreTokenizer, ToolSyntax
from kinfolk.text.pretokenizers import SENTENCEPIECE

TOKENIZER: Final = "gemma4"

LINES: Final = PreTokenizer(TOKENIZER, (r"[^\n]+|\n+",), symbols="characters", needs_bos=True)
"""Lines, and runs of line ends between them. Some early files deny that a text begins with BOS."""

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
"""Special tokens whose text belongs to answers, for whoever takes those apart."""
