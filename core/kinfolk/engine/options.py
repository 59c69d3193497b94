"""Options of a generation and their defaults.

An option wins over the model's card, the card over the recommendation in the model file, and that
over the built-in default.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from kinfolk.sched.request import Sampling

if TYPE_CHECKING:
    from kinfolk.descriptors import SamplingDefaults

UNLIMITED: Final = 2**63 - 1
"""A token limit beyond every context: the answer ends where the context does."""


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Options of a generation; ``None`` = not given.

    ``choices`` answers are sampled, the i-th with ``seed + i``. ``logprobs`` is the number of
    alternatives to report, ``None`` = report nothing. ``stop`` are texts that end the output and
    are not part of it; ``stop_tokens`` ids that do. ``ignore_eos`` goes on past the model's own
    end of text. Without ``draft`` nothing is drafted; ``draft_width`` is the most rows to draft in
    a step, and ``draft_mode`` what to propose, if the drafter can. Without ``paged`` all of it must
    fit the budget of a sequence on the device.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False
    choices: int = 1
    logprobs: int | None = None
    draft: bool = True
    draft_width: int | None = None
    draft_mode: Literal["auto", "chain", "tree"] = "auto"
    priority: int = 0
    paged: bool = True


def sampling(options: GenerationOptions, defaults: SamplingDefaults, vocabulary: int) -> Sampling:
    """The sampling of the first choice; the seed is random if none was given.

    Raises :class:`SettingsError` or :class:`RequestError` naming the invalid option.
    """

    def said(given: float | None, default: float) -> float:
        return default if given is None else given

    parameters = Sampling(
        temperature=said(options.temperature, defaults.temperature),
        top_k=defaults.top_k if options.top_k is None else options.top_k,
        top_p=said(options.top_p, defaults.top_p),
        min_p=said(options.min_p, defaults.min_p),
        repetition_penalty=said(options.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=said(options.presence_penalty, defaults.presence_penalty),
        frequency_penalty=said(options.frequency_penalty, defaults.frequency_penalty),
        logit_bias=tuple(sorted(options.logit_bias.items())),
        seed=secrets.randbits(48) if options.seed is None else options.seed,
        logprobs=options.logprobs,
    )
    parameters.check_tokens(vocabulary)
    return parameters
