"""What the numbers of a request may be, and how that is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from numbers import Integral, Real
from typing import Any, Final, NamedTuple, TypeGuard

from kinfolk.errors import SettingsError, shown

LARGEST_TOP_K: Final = 2**31 - 1
"""More than any vocabulary has; it keeps every token."""

FORBIDDEN: Final = -100
"""The least bias. Clients mean "never" by it; only minus infinity is that whatever the others are,
but where no token has a larger one there is none to choose."""


def is_whole(value: object) -> bool:
    """Whether a value is an integer of any kind; ``True`` is a word, not a number."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number of any kind."""
    return isinstance(value, Real) and not isinstance(value, bool)


class Rule(NamedTuple):
    """Kind and range of a field, and both in words."""

    kind: Callable[[object], bool]
    holds: Callable[[Any], bool]
    words: str


RULES: Final[Mapping[str, Rule]] = {
    "temperature": Rule(is_number, lambda x: 0 <= x <= 100, "a number between 0 and 100"),
    "top_k": Rule(
        is_whole,
        lambda x: 0 <= x <= LARGEST_TOP_K,
        f"an integer between 0 (off) and {LARGEST_TOP_K}",
    ),
    "top_p": Rule(is_number, lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
    "min_p": Rule(is_number, lambda x: 0 <= x < 1, "a number of at least 0 and below 1"),
    # Logits are divided by it: what float32 rounds to 0 would make them infinite.
    "repetition_penalty": Rule(
        is_number, lambda x: 0.01 <= x <= 10, "a number between 0.01 and 10"
    ),
    "presence_penalty": Rule(is_number, lambda x: -10 <= x <= 10, "a number between -10 and 10"),
    "frequency_penalty": Rule(is_number, lambda x: -10 <= x <= 10, "a number between -10 and 10"),
    "seed": Rule(is_whole, lambda _: True, "an integer"),
    "logprobs": Rule(is_whole, lambda x: 0 <= x <= 20, "an integer between 0 and 20"),
}
"""Of the fields of :class:`Sampling` that are numbers."""


def check_bias(entries: object) -> None:
    """Raise :class:`SettingsError` for what is no tuple of (token, bias)."""
    if not isinstance(entries, tuple):
        raise SettingsError(
            f"logit_bias must be a tuple of (token, bias), got {shown(entries)}",
            field="logit_bias",
        )
    for entry in entries:
        if not (isinstance(entry, tuple) and len(entry) == 2 and is_whole(entry[0])):
            raise SettingsError(
                f"logit_bias: an entry must be (token, bias), got {shown(entry)}",
                field="logit_bias",
            )
        token, bias = entry
        if token < 0:
            raise SettingsError(f"logit_bias: token {shown(token)} is negative", field="logit_bias")
        if not is_number(bias) or not (bias == -inf or FORBIDDEN <= bias <= -FORBIDDEN):
            raise SettingsError(
                f"logit_bias: the bias of token {shown(token)} must be a number between "
                f"{FORBIDDEN} and {-FORBIDDEN}, or minus infinity, got {shown(bias)}",
                field="logit_bias",
            )
