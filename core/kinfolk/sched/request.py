"""What a client asks for, and how far it has come."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import Literal

from kinfolk.errors import EngineError, RequestError, SettingsError, shown
from kinfolk.residency.read_tokens import ReadTokens
from kinfolk.residency.residency import Residency
from kinfolk.sched.draft_counts import DraftTally
from kinfolk.sched.rules import FORBIDDEN, RULES, check_bias
from kinfolk.state.chunks import Checkpoint, SlotLease
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.stored_prefix import StoredPrefix


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. ``temperature`` 0 = the most probable one.

    Penalties are applied to logits first (repetition, then frequency and presence, over prompt and
    output for repetition and over output for the others), then bias, temperature, top-k, top-p and
    min-p. The noise of a token depends on ``seed``, position and token alone, so neither neighbours
    nor order nor drafts change a request. ``logprobs`` = number of alternatives to report, ``None``
    = none.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            value = getattr(self, name)
            if value is None and name == "logprobs":
                continue
            if not (rule.kind(value) and rule.holds(value)):
                raise SettingsError(f"{name} must be {rule.words}, got {shown(value)}", field=name)
        check_bias(self.logit_bias)

    def check_tokens(self, vocabulary: int) -> None:
        """Raise :class:`RequestError` if the bias names a token that the vocabulary does not have,
        or leaves none that may be chosen."""
        bias = dict(self.logit_bias)
        unknown = next((token for token in bias if token >= vocabulary), None)
        if unknown is not None:
            raise RequestError(
                f"logit_bias: token {shown(unknown)} is outside of the vocabulary of {vocabulary} "
                "tokens",
                field="logit_bias",
            )
        if sum(value <= FORBIDDEN for value in bias.values()) == vocabulary:
            raise RequestError(
                f"logit_bias forbids all {vocabulary} tokens (a bias of {FORBIDDEN} or false); "
                "leave at least one",
                field="logit_bias",
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def is_edited(self) -> bool:
        """Whether logits are changed before anything is chosen."""
        return self.has_penalties or bool(self.logit_bias)

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )


@dataclass(frozen=True, slots=True)
class Request:
    """One generation. ``checkpoints`` are prompt positions worth keeping for later requests: the
    last one for the next turn of this conversation, those before it for other ones.

    ``keep``: so are the end of the answer and, in a long prompt, positions on a grid. The request
    ``follows`` another one with the same prompt, which says that it has ``followers``: one of them
    computes the prompt, and the others wait for it.
    ``stop`` holds token ids that end the output (they are emitted as the last token);
    ``quantum`` overrides the scheduler's number of tokens a turn; lower ``priority`` runs first.
    Without ``draft`` nothing is drafted for it; ``draft_width`` is the most rows to draft for it in
    a step, ``None`` = as many as the scheduler's limits say; ``draft_mode`` is what the device
    proposes, if it can. ``slot`` is the slot to run in (from 1), ``None`` = any free one. After
    ``grant`` tokens it is held until it is granted more; ``None`` = it never is. One that must not
    be ``paged`` is refused if it does not fit the budget of a sequence.
    """

    id: str
    prompt: tuple[int, ...]
    max_new: int
    sampling: Sampling = Sampling()
    stop: frozenset[int] = frozenset()
    checkpoints: tuple[int, ...] = ()
    keep: bool = False
    follows: str | None = None
    followers: int = 0
    draft: bool = True
    draft_width: int | None = None
    draft_mode: Literal["auto", "chain", "tree"] = "auto"
    priority: int = 0
    quantum: int | None = None
    slot: int | None = None
    grant: int | None = None
    paged: bool = True

    def until_stop(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens up to the first that ends the output."""
        if self.stop.isdisjoint(tokens):
            return tokens
        return tokens[: next(i for i, token in enumerate(tokens) if token in self.stop) + 1]

    def draft_rows(self, most: int) -> int:
        """Rows to draft for it in a step, of ``most`` that could be drafted."""
        if not self.draft:
            return 0
        return most if self.draft_width is None else min(most, self.draft_width)


class Status(Enum):
    WAITING = "waiting"
    PREEMPTED = "preempted"
    PREFILL = "prefill"
    DECODE = "decode"
    HELD = "held"
    FINISHED = "finished"


Place = Literal["device", "host", "disk"]
"""Where a checkpoint was when a request started from it."""


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(slots=True)
class Sequence:
    """A request on its way; ``hashed`` is its prompt, if that was hashed before. The scheduler is
    its only writer.

    ``known`` = prompt and everything emitted. While decoding ``known[computed]`` is the pending
    token: chosen, emitted, and not in the state yet, so ``computed == len(known) - 1``. The device
    holds ``proposed`` tokens that may follow it, a ``proposed_tree`` or a chain, with the chances
    ``confidence``. Its first ``reused`` tokens came from a stored prefix that was at
    ``reused_from``; ``start`` is the longest one that lies in them as a whole. ``asked_disk``: it
    was looked for on the disk, which brought ``fetched``. ``draft_source`` made the draft that is
    verified; ``copies``: all of the last draft of the host was accepted. It is held once
    ``granted`` tokens are emitted, ``None`` = never. ``kept`` is its state while it is preempted,
    and ``preempts`` whether it may take the place of others.
    If it is paged, ``residency`` says which of its chunks are on the device, and ``salted`` is its
    prompt as the prefix cache knows it where something was missed. ``exact``: nothing was, so far.
    ``read``: its tokens as another model reads them to score its chunks.
    """

    request: Request
    arrival: int
    hashed: InitVar[HashedTokens | None] = None
    prompt: HashedTokens = field(init=False, repr=False)
    known: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    lease: SlotLease | None = None
    computed: int = 0
    reused: int = 0
    start: StoredPrefix | None = field(default=None, repr=False)
    kept: Checkpoint | None = None
    preempts: bool = True
    residency: Residency | None = field(default=None, repr=False)
    salted: HashedTokens | None = field(default=None, repr=False)
    read: ReadTokens | None = field(default=None, repr=False)
    exact: bool = True
    reused_from: Place | None = None
    asked_disk: bool = False
    fetched: StoredPrefix | None = field(default=None, repr=False)
    served_in_turn: int = 0
    proposed: int = 0
    proposed_tree: bool = False
    confidence: tuple[float, ...] = ()
    draft_source: int = 0
    copies: bool = False
    drafts: DraftTally = field(default_factory=DraftTally)
    steps: int = 0
    granted: int | None = field(init=False)
    finish: FinishReason | None = None
    error: str | None = None

    def __post_init__(self, hashed: HashedTokens | None) -> None:
        self.prompt = hashed or HashedTokens(self.request.prompt)
        if not self.known:
            self.known = list(self.request.prompt)
        self.granted = self.request.grant

    @property
    def leased(self) -> SlotLease:
        """Its lease; raises :class:`EngineError` if it has no slot."""
        if self.lease is None:
            raise EngineError(f"request {self.request.id!r} has no slot")
        return self.lease

    @property
    def emitted(self) -> int:
        return len(self.known) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        return len(self.request.prompt) + self.request.max_new - len(self.known)

    @property
    def budget(self) -> int:
        """Tokens that it may emit before it ends or is held."""
        if self.granted is None:
            return self.remaining
        return min(self.remaining, self.granted - self.emitted)
