"""Text formats that a family declares: pre-tokenizer, chat markers, tool-call syntax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinfolk.checked import Checked


@dataclass(frozen=True, slots=True)
class TaggedArguments(Checked):
    """Arguments as tagged pairs: ``<key>city</key><value>Rome</value>``.

    ``key`` and ``value`` are the (opening, closing) tags of a name and of a value; the opening tag
    of a value may be empty. ``end`` follows the last value. A string value is raw text, with one
    ``padding`` removed on each side; any other value is JSON.
    """

    key: tuple[str, str]
    value: tuple[str, str]
    end: str = ""
    padding: str = ""


@dataclass(frozen=True, slots=True)
class ObjectArguments(Checked):
    """Arguments as one object ``{key:value, ...}``: bare keys, strings enclosed in ``quote``."""

    quote: str


@dataclass(frozen=True, slots=True)
class ToolSyntax(Checked):
    """Syntax of a tool call between its markers.

    ``name`` are the texts before and after the function's name; both may be empty, because white
    space or a bracket also ends a name.
    """

    arguments: TaggedArguments | ObjectArguments
    name: tuple[str, str] = ("", "")

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of the syntax that a vocabulary may hold as single tokens."""
        if isinstance(self.arguments, ObjectArguments):
            return (self.arguments.quote,)
        tags = self.name + self.arguments.key + self.arguments.value + (self.arguments.end,)
        return tuple(dict.fromkeys(tag for tag in tags if len(tag) > 1))


@dataclass(frozen=True, slots=True)
class ChatFormat(Checked):
    """Chat format of a family: stop tokens, reasoning and tool-call markers, role names.

    ``stop_tokens`` are token texts that end a turn, besides the end-of-generation ids of the file;
    ``keep_tokens`` are token texts that never do. ``think`` are the (opening, closing) markers of
    reasoning, ``tool_call`` those of a tool call, ``tool_syntax`` the syntax between the latter.
    ``role_aliases`` maps a role of a message to the template's name for it.
    """

    stop_tokens: tuple[str, ...] = ()
    keep_tokens: tuple[str, ...] = ()
    think: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None
    tool_syntax: ToolSyntax | None = None
    role_aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers of reasoning and tool calls: they stay in the text, for the parsers to split
        it."""
        syntax = self.tool_syntax.markers if self.tool_syntax is not None else ()
        return (self.think or ()) + (self.tool_call or ()) + syntax


@dataclass(frozen=True, slots=True)
class PreTokenizer(Checked):
    """A pre-tokenizer: splits text into pieces before BPE merging.

    ``name`` is the value of ``tokenizer.ggml.pre``, or of ``tokenizer.ggml.model`` if that is not
    the byte-level ``gpt2``. ``patterns`` are regular expressions, each applied to the pieces of the
    one before it; a match becomes a piece of its own. ``symbols`` is the alphabet of merging, a key
    of :data:`kinfolk.text.symbols.SYMBOLS`. With ``ignore_merges`` a piece that is a token is not
    merged. ``add_bos`` is the default for a file without the flag; ``needs_bos`` overrides it.
    """

    name: str
    patterns: tuple[str, ...]
    symbols: str = "bytes"
    ignore_merges: bool = False
    add_bos: bool = False
    needs_bos: bool = False
