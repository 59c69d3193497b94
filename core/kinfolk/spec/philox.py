"""Counter-based random numbers: Philox4x32-10 (Salmon et al., 2011).

A number depends on its key and counter alone, so it can be drawn for any position of any request
in any order, and a rejected draft leaves nothing to rewind.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10

Words = npt.NDArray[np.uint64]


def philox(counter: Words, key: Words) -> Words:
    """counter [n, 4] and key [n, 2] of 32-bit words in uint64 -> 32-bit words [n, 4]."""
    c = [counter[:, i] for i in range(4)]
    k = [key[:, i] for i in range(2)]
    for _ in range(_ROUNDS):
        first, second = c[0] * _MULTIPLIERS[0], c[2] * _MULTIPLIERS[1]
        c = [
            (second >> _HALF) ^ c[1] ^ k[0],
            second & _LOW,
            (first >> _HALF) ^ c[3] ^ k[1],
            first & _LOW,
        ]
        k = [(word + step) & _LOW for word, step in zip(k, _KEY_STEPS, strict=True)]
    return np.stack(c, 1)


def uniforms(seeds: npt.ArrayLike, positions: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each (seed, position), both below 2^64."""
    seed, position = np.asarray(seeds, np.uint64), np.asarray(positions, np.uint64)
    zero = np.zeros_like(position)
    words = philox(
        np.stack([position & _LOW, position >> _HALF, zero, zero], 1),
        np.stack([seed & _LOW, seed >> _HALF], 1),
    )
    bits = (words[:, 0] << _HALF | words[:, 1]) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
