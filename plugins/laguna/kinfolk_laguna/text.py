"""Pre-tokenizer and chat format of the family.

Text is cut at runs of newlines first, so that a piece has only newlines or none.
"""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import ChatFormat, PreTokenizer, TaggedArguments, ToolSyntax
from kinfolk.text.patterns import words

PRETOKENIZERS: Final = (PreTokenizer("laguna", (r"[^\n]+|[\n]+", words())),)

END_OF_TEXT: Final = "〈|EOS|〉"
END_OF_TURN: Final = "</assistant>"

CHAT: Final = ChatFormat(
    stop_tokens=(END_OF_TEXT, END_OF_TURN),
    think=("<think>", "</think>"),
    tool_call=("<tool_call>", "</tool_call>"),
    tool_syntax=ToolSyntax(
        TaggedArguments(key=("<arg_key>", "</arg_key>"), value=("<arg_value>", "</arg_value>"))
    ),
    role_aliases={"developer": "system"},
)
