"""What a family states about text: how it is cut before merging, and how turns are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Arguments one by one between tags: ``<key>city</key><value>Rome</value>``.

    ``key`` and ``value`` are the texts around a name and around its value, the opening one of a
    value may be empty; ``end`` follows the last value. A value whose type is a string is raw text,
    from which ``padding`` is taken once at either side; any other is JSON.
    """

    key: tuple[str, str]
    value: tuple[str, str]
    end: str = ""
    padding: str = ""


@dataclass(frozen=True, slots=True)
class ObjectArguments:
    """Arguments as one object ``{key:value, ...}`` with bare keys and strings between ``quote``."""

    quote: str


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """What stands between the markers of a tool call.

    ``name`` holds the texts before and after the function's name; both may be empty, as a name
    also ends at space or at a bracket.
    """

    arguments: TaggedArguments | ObjectArguments
    name: tuple[str, str] = ("", "")

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that a vocabulary may hold as single tokens."""
        if isinstance(self.arguments, ObjectArguments):
            return (self.arguments.quote,)
        tags = self.name + self.arguments.key + self.arguments.value + (self.arguments.end,)
        return tuple(dict.fromkeys(tag for tag in tags if len(tag) > 1))


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a family talks: markers as text, stop tokens, normalisation of messages.

    ``stop_tokens`` are texts that end a turn besides the file's own end-of-text ids;
    ``keep_tokens`` are texts that look like an end of text and are none. ``think`` holds the texts
    that open and close reasoning, ``tool_call`` those around a call, ``tool_syntax`` what stands
    between them.
    """

    stop_tokens: tuple[str, ...] = ()
    keep_tokens: tuple[str, ...] = ()
    think: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None
    tool_syntax: ToolSyntax | None = None
    role_aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that tell the parts of an answer apart, and so must reach whoever reads it."""
        syntax = self.tool_syntax.markers if self.tool_syntax is not None else ()
        return (self.think or ()) + (self.tool_call or ()) + syntax


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A way to cut text before byte-pair merging.

    ``name`` is the id of ``tokenizer.ggml.pre``; for a file whose ``tokenizer.ggml.model`` is not
    the byte-level ``gpt2``, it is the name of that model. ``patterns`` are regular expressions
    applied one after the other, each to the pieces the last one left; each isolates its matches.
    ``symbols`` names what merging starts from (:mod:`kinfolk.text.symbols`). With ``ignore_merges``
    a piece that is a token is taken whole. ``add_bos`` counts where the file does not say,
    ``needs_bos`` whatever it says.
    """

    name: str
    patterns: tuple[str, ...]
    symbols: str = "bytes"
    ignore_merges: bool = False
    add_bos: bool = False
    needs_bos: bool = False
