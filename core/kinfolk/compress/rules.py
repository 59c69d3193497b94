"""Which prompts are compressed, and which messages of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

CompressionMode = Literal["off", "auto", "always"]
MODES: Final[tuple[str, ...]] = get_args(CompressionMode)

RECENT_MESSAGES: Final = 2
"""Last messages of a conversation, which are never compressed."""

FEWEST_AGED_TOKENS: Final = 512
"""Shorter messages of a conversation stay as they are."""

SkipReason = Literal["off", "tools", "short", "nothing", "ids", "waiting", "failed"]
"""Why a prompt is read in full: compression is off; it has tools or their results; it is below
the threshold; nothing in it may be left out; it came as token ids; compression waits after a
failure; it failed."""

_KEPT_ROLES: Final = ("system", "developer", "tool")


@dataclass(frozen=True, slots=True)
class ChosenMessages:
    """The messages to compress, by number. ``together``: they are one text with one question, the
    last message, and scored as such; else each is scored by itself."""

    messages: tuple[int, ...]
    together: bool


def choose_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: bool,
    mode: CompressionMode,
    tokens: int,
    threshold: int,
) -> ChosenMessages | SkipReason:
    """What to compress of a conversation of ``tokens`` tokens, or why nothing is.

    Tools, their calls and their results must stay as they are, letter for letter. In a
    conversation that has answers, only messages before the last two are compressed, each by
    itself: its text is then the same in every later turn, and so is the prefix that is kept of it.
    """
    if mode == "off":
        return "off"
    if tools or any(each.get("tool_calls") or each.get("role") == "tool" for each in messages):
        return "tools"
    if mode == "auto" and tokens < threshold:
        return "short"
    continues = any(each.get("role") == "assistant" for each in messages)
    end = len(messages) - RECENT_MESSAGES if continues else len(messages)
    chosen = tuple(
        number
        for number, each in enumerate(messages[: max(0, end)])
        if each.get("role") not in _KEPT_ROLES and str(each.get("content") or "").strip()
    )
    return ChosenMessages(chosen, together=not continues) if chosen else "nothing"
