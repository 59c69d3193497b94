"""Planted acceptance: drafts are kept by draws from a profile, whatever their tokens are.

``kinfolk bench --plant`` times real passes of a real drafter at an acceptance that its weights, or
the text, do not have. The output is then nonsense.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import torch

from kinfolk.errors import SettingsError
from kinfolk.verify_api import Draft, RowSampling
from kinfolk_kernels.sample.philox import uniforms

OUTPUT_INVALID: Final = (
    "output invalid: drafts are accepted by draws from a profile, not for their tokens"
)

_DRAWS: Final = 1 << 20
"""Draws in the table, a power of two; they repeat after so many positions of a sequence."""

_SPREAD: Final = 0x9E3779B1
"""Odd multiplier of seeds: Knuth's, 2^32 divided by the golden ratio, whose multiples lie far
apart, so sequences with other seeds read other parts of the table."""

_NO_TOKEN: Final = -1
_HALVINGS: Final = 60
"""Steps of a bisection in 0..1, after which float64 has no numbers between the ends."""


@dataclass(frozen=True, slots=True)
class PlantedAcceptance:
    """A profile and its draws.

    ``length`` is the mean number of tokens of a step that verifies drafts of ``depth`` tokens: the
    accepted ones and one more. The profile is an assumption, that of :func:`length_of`: every token
    whose predecessors are accepted is accepted with ``chance``, independently. In a tree it is the
    first child of a row that may be accepted, the drafter's best candidate for its place, and
    siblings add nothing. ``draws`` bool [n], on the device, are true with that chance.
    """

    length: float
    depth: int
    chance: float
    draws: torch.Tensor

    @classmethod
    def of(cls, length: float, depth: int, device: torch.device) -> Self:
        """Raises :class:`SettingsError` for a length that no chance gives."""
        chance = chance_for(length, depth)
        zero = torch.zeros(1, dtype=torch.int64)
        draws = uniforms(zero, torch.arange(_DRAWS), zero) < chance
        return cls(length, depth, chance, draws.to(device))

    def over(self, draft: Draft, rows: torch.Tensor, sampling: RowSampling) -> Draft:
        """``draft`` with an ``accept_drafts`` that follows draws instead of equal tokens.

        ``rows`` int64 [L, T] are those of a ``VerifyStep``. The draw of a row depends on its seed
        and on the position of the token to be chosen, so on its place in the draft, and nothing
        else. A row takes what a kept row before it chose for its own token; the tokens that are
        emitted, and everything that reads them, stay those of the draft.
        """
        place = (sampling.position + sampling.seed * _SPREAD) & (_DRAWS - 1)
        accepts = self.draws[place][rows.clamp_min(0)]

        def accept_drafts(
            chosen: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, budget: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            above = parents.clamp_min(0)
            planted = torch.where(accepts.gather(1, above), chosen.gather(1, above), _NO_TOKEN)
            return draft.accept_drafts(chosen, planted, parents, budget)

        return replace(draft, accept_drafts=accept_drafts)


def length_of(chance: float, depth: int) -> float:
    """1 + a + a^2 + .. + a^depth: the mean tokens of a step, if a draft goes ``depth`` tokens deep
    and each of them is accepted with the chance a behind accepted ones (Leviathan et al., "Fast
    Inference from Transformers via Speculative Decoding", 2023, equation 1)."""
    length = 1.0
    for _ in range(depth):
        length = 1 + chance * length
    return length


def chance_for(length: float, depth: int) -> float:
    """The chance a for which :func:`length_of` is ``length``, by bisection: it grows with a.

    Raises :class:`SettingsError` outside of 1 .. ``depth`` + 1.
    """
    if not 1 <= length <= depth + 1:
        raise SettingsError(
            f"a planted length of {length:g} tokens a step: with drafts of {depth} tokens it lies "
            f"between 1 (none is accepted) and {depth + 1} (all are, and one token follows)"
        )
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if length_of(middle, depth) < length else (low, middle)
    return high
