"""Drafts in the API: the field ``speculative`` of requests, and the figures of ``usage``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from kinfolk.draft_api import MAX_PROPOSED
from kinfolk.sched.draft_counts import DraftCounts
from kinfolk.server.fields import Integer

SPECULATIVE: Final = (
    "an object in which enabled is true or false, mode is auto, chain or tree, and width is an "
    f"integer between 1 and {MAX_PROPOSED}"
)

Fallback = Literal["drafter_failed", "no_drafter", "no_trees", "no_chains"]
"""Why a request was not drafted for as it asked: a draft failed, and steps went on without, or so
many had failed before that no more are asked for; the server has no drafter; its drafter proposes
chains only; it proposes trees only."""


class Speculative(BaseModel):
    """What a request asks of drafts: none at all, a mode, and the most rows in a step."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    enabled: bool | None = None
    mode: Literal["auto", "chain", "tree"] | None = None
    width: Annotated[Integer | None, Field(ge=1, le=MAX_PROPOSED)] = None

    @property
    def drafts(self) -> bool:
        return self.enabled is not False


def speculative_usage(asked: Speculative | None, counts: DraftCounts) -> dict[str, Any] | None:
    """``usage.speculative``; ``None`` where nothing was asked for and nothing drafts."""
    if asked is None and counts.mode == "off":
        return None
    return {
        "steps": counts.steps,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "accept_length": round(counts.accept_length, 3),
        "accept_rate": round(counts.accept_rate, 3),
        "per_position": [round(part, 3) for part in counts.per_position],
        "mode": counts.mode,
        "fallback": _fallback(asked, counts),
    }


def _fallback(asked: Speculative | None, counts: DraftCounts) -> Fallback | None:
    if counts.failures or counts.given_up:
        return "drafter_failed"
    if asked is None or not asked.drafts:
        return None
    if counts.mode == "off":
        return "no_drafter"
    if asked.mode in (None, "auto", counts.mode):
        return None
    return "no_trees" if asked.mode == "tree" else "no_chains"
