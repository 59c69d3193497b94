"""Counter-based random numbers: Philox4x32-10 (Salmon et al., 2011).

A number depends only on its key and counter, so numbers can be drawn for any positions of any
requests in any order, and a rejected draft needs no rewinding.
"""

from __future__ import annotations

import torch

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF


def philox(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """counter [n, 4] and key [n, 2] of 32-bit words in int64 -> 32-bit words [n, 4]."""
    c0, c1, c2, c3 = counter.unbind(1)
    k0, k1 = key.unbind(1)
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
    return torch.stack((c0, c1, c2, c3), 1)


def uniforms(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """A number in [0, 1) with 53 random bits, float64 [n], for each of ``seeds`` and ``positions``
    int64 [n], of which all 64 bits are used."""
    zero = torch.zeros_like(positions)
    words = philox(
        torch.stack((positions & LOW, (positions >> 32) & LOW, zero, zero), 1),
        torch.stack((seeds & LOW, (seeds >> 32) & LOW), 1),
    )
    bits = (words[:, 0] << 21) | (words[:, 1] >> 11)
    return bits.double() * 2.0**-53
