"""Cards of the family's released models."""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import ModelCard, SamplingDefaults

_SAMPLING: Final = SamplingDefaults(temperature=0.6, top_k=50, top_p=0.95)
_BRIEF, _ROOMY = 4096, 32768
_NAMES: Final = {
    "laguna-xs.2": _BRIEF,
    "laguna-xs-2.1": _ROOMY,
    "laguna-s-2.1": _ROOMY,
    "laguna-m.1": _ROOMY,
}

CARDS: Final = tuple(
    ModelCard(
        name,
        _SAMPLING,
        max_tokens=tokens,
        drafter="poolside/Laguna-XS.2-speculator.dflash" if name == "laguna-xs.2" else "",
    )
    for name, tokens in _NAMES.items()
)
