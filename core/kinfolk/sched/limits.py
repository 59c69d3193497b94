"""What a step may hold and how turns are shared out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kinfolk.errors import SettingsError


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Fixed for the life of a scheduler; counts of tokens and rows.

    slots            sequences that may be live at once
    context          positions a sequence may reach, prompt and output together
    step_tokens      rows of one step, all items together
    slice            prefill slices end at multiples of this from position 0
    mixed_slice      in steps in which sequences decode, slices end at multiples of this too;
                     ``None`` = no shorter than elsewhere
    step_sequences   decoding sequences of one step; ``None`` = as many as have a row
    quantum          tokens a sequence emits before its turn ends, unless the request says otherwise
    max_draft        drafted rows of one sequence in one step, of a drafter of the host
    proposed_chain   drafted rows of one sequence that the device proposes as a chain, 0 = none
    proposed_tree    the same as a tree
    proposed_depth   most of either that follow one another; ``None`` = all
    host_first       of two drafts that are expected to be as good, the host's is verified
    widths           how many drafted rows are verified: "fixed" = all, "cost" = as many as pay,
                     "confidence" = as many as the drafter gives a chance
    draft_width      most drafted rows of one sequence to verify; ``None`` = no limit
    verify_rows      most rows of the sequences that decode or verify in a step with drafts;
                     ``None`` = no limit
    prefill_share    part of ``step_tokens`` that decoding leaves to prefill when prompts wait
    max_queue        requests that may wait for a slot; ``None`` = any number
    previews         ends of prompts of paged sequences run for their queries before they are read
    preempt          a request of higher priority takes the place of a running one of lower priority
    overlap          plan a step before the one before it is known, where that changes nothing
    checkpoint_every tokens of a long prompt between checkpoints, 0 = none
    vocabulary       token ids are below this; ``None`` = not checked
    """

    slots: int
    context: int
    step_tokens: int = 1024
    slice: int = 512
    mixed_slice: int | None = None
    step_sequences: int | None = None
    quantum: int = 16
    max_draft: int = 15
    proposed_chain: int = 0
    proposed_tree: int = 0
    proposed_depth: int | None = None
    host_first: bool = False
    widths: Literal["fixed", "cost", "confidence"] = "fixed"
    draft_width: int | None = None
    verify_rows: int | None = None
    prefill_share: float = 0.25
    checkpoint_every: int = 0
    vocabulary: int | None = None
    overlap: bool = True
    preempt: bool = False
    previews: bool = False
    max_queue: int | None = None

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("slots", self.slots >= 1, "at least 1"),
            ("context", self.context >= 2, "at least 2"),
            ("slice", self.slice >= 1, "at least 1"),
            ("mixed_slice", self.mixed_slice is None or self.mixed_slice >= 1, "at least 1"),
            # A whole slice may stand beside decoding rows, of which one must fit.
            ("step_tokens", self.step_tokens > self.slice, f"above the slice length {self.slice}"),
            (
                "step_sequences",
                self.step_sequences is None or self.step_sequences >= 1,
                "1 or more",
            ),
            ("quantum", self.quantum >= 1, "at least 1"),
            ("max_draft", 0 <= self.max_draft <= 63, "between 0 and 63"),
            ("proposed_chain", 0 <= self.proposed_chain <= 63, "between 0 and 63"),
            ("proposed_tree", 0 <= self.proposed_tree <= 63, "between 0 and 63"),
            ("draft_width", self.draft_width is None or self.draft_width >= 1, "at least 1"),
            ("verify_rows", self.verify_rows is None or self.verify_rows >= 1, "at least 1"),
            (
                "proposed_depth",
                self.proposed_depth is None or self.proposed_depth >= 1,
                "at least 1",
            ),
            ("prefill_share", 0 <= self.prefill_share < 1, "at least 0 and below 1"),
            ("checkpoint_every", self.checkpoint_every >= 0, "at least 0"),
            ("max_queue", self.max_queue is None or self.max_queue >= 0, "at least 0"),
            ("vocabulary", self.vocabulary is None or self.vocabulary >= 1, "at least 1"),
        ):
            if not holds:
                raise SettingsError(f"{name} must be {rule}, got {getattr(self, name)}")

    @property
    def proposed(self) -> int:
        """Most drafted rows of a sequence that the device proposes."""
        return max(self.proposed_chain, self.proposed_tree)

    @property
    def most_in_flight(self) -> int | None:
        """Most requests that run and wait, ``None`` = any number."""
        return None if self.max_queue is None else self.slots + self.max_queue

    @property
    def most_drafted(self) -> int:
        """Most drafted rows of a sequence in a step, whoever drafts them."""
        return max(self.max_draft, self.proposed)


@dataclass(frozen=True, slots=True)
class ScoringLimits:
    """``context``: most tokens of a text; ``slice``: most rows of a step; ``least``: rows that the
    last slice has if the text has as many; ``vocabulary``: token ids are below this; ``waiting``:
    most texts that wait."""

    context: int
    slice: int
    least: int
    vocabulary: int
    waiting: int
