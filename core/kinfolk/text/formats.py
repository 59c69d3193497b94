"""What a family states about text: how it is cut before merging, and how turns are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a family talks: markers as text, stop tokens, normalisation of messages.

    ``stop_tokens`` are texts that end a turn besides the file's own end-of-text ids;
    ``keep_tokens`` are texts that look like an end of text and are none. ``think`` holds the texts
    that open and close reasoning, ``tool_call`` those around a call.
    """

    stop_tokens: tuple[str, ...] = ()
    keep_tokens: tuple[str, ...] = ()
    think: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None
    role_aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that tell the parts of an answer apart, and so must reach whoever reads it."""
        return (self.think or ()) + (self.tool_call or ())


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
