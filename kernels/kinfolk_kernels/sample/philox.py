"""Counter-based random numbers: Philox4x32-10 (Salmon et al., 2011).

A number depends only on its key and counter, so numbers can be drawn for any tokens at any
positions of any requests in any order, and a rejected draft needs no rewinding.
"""

from __future__ import annotations

import torch

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Four 32-bit words in int64."""


def philox(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """The four words of each counter and key, whose 32-bit words in int64 have one shape or
    broadcast to it."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # Products wrap around in int64, which changes only the sign.
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (second >> 32) & LOW ^ c1 ^ k0,
            second & LOW,
            (first >> 32) & LOW ^ c3 ^ k1,
            first & LOW,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c0, c1, c2, c3


def uniforms(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """A number with 53 random bits, strictly between 0 and 1, float64, for each seed, position and
    token. The arguments are int64 of one shape or broadcast to it; all 64 bits of seeds and
    positions are used, and 33 of tokens.

    One call of Philox serves two neighbours: its first two words are the even token's. Numbers are
    multiples of 2^-53; 2^-54 stands for 0. So their distance to 1 is exact.
    """
    words = philox(
        (positions & LOW, (positions >> 32) & LOW, tokens >> 1, torch.zeros_like(tokens)),
        (seeds & LOW, (seeds >> 32) & LOW),
    )
    odd = (tokens & 1).bool()
    high, low = torch.where(odd, words[2], words[0]), torch.where(odd, words[3], words[1])
    bits = (high << 21) | (low >> 11)
    return bits.double().clamp_min(0.5) * 2.0**-53


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Gumbel noise -log(-log(u)), float64, of the :func:`uniforms` u: between -3.63 and 36.74."""
    return -(-uniforms(seeds, positions, tokens).log()).log()
