"""Facts about a family, a drafter or a policy that decide which checks apply to it.

A check states its needs with :func:`needs`. A check with an unmet need is not run, and is listed
with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

import pytest

from kinfolk.gguf.row_order import NEIGHBOURS
from kinfolk.hookcheck import implementations
from kinfolk.plans import Paged
from kinfolk.testing.marks import FORMAT, NEEDS, Need
from kinfolk.testing.model_files import can_hold, can_write
from kinfolk.text.chat import TEMPLATE

if TYPE_CHECKING:
    from kinfolk.testing.drafter_kit import DrafterKit
    from kinfolk.testing.kit import Kit
    from kinfolk.testing.policy_kit import PolicyKit


@dataclass(frozen=True, slots=True)
class Facts:
    """Unmet needs and weight formats that cannot be checked, by name, each with the reason."""

    missing: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, item: pytest.Item) -> str:
        """The reason why a check does not apply; empty if it applies."""
        for mark in item.iter_markers(NEEDS):
            for need in mark.args:
                if need in self.missing:
                    return self.missing[need]
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        return self.formats.get(parameters.get(FORMAT, ""), "")


def facts_of(kit: Kit) -> Facts:
    """Inspect the family and its tiny model. An exception in them is not raised here: checks that
    need the tiny model are not run, and the check of the tiny model reports the error."""
    try:
        return Facts(_missing(kit), _formats(kit))
    except Exception as error:  # A family may raise any exception.
        reason = f"the tiny model cannot be used: {type(error).__name__}: {error}"
        return Facts(dict.fromkeys(get_args(Need), reason))


def drafter_facts_of(kit: DrafterKit) -> Facts:
    """As :func:`facts_of`, of a drafter. Checks of weights do not apply to a drafter of the host,
    nor those of the host to one with weights."""
    host = "the drafter has weights"
    try:
        if not kit.spec.has_weights:
            reason = "the drafter runs on the host and has no weights"
            weights = dict.fromkeys(get_args(Need), reason)
            del weights["host"]
            return Facts(weights)
        return Facts(_missing_of_drafter(kit) | {"host": host})
    except Exception as error:  # A drafter may raise any exception.
        reason = f"the tiny drafter cannot be used: {type(error).__name__}: {error}"
        return Facts(dict.fromkeys(get_args(Need), reason))


def policy_facts_of(kit: PolicyKit) -> Facts:
    """As :func:`facts_of`, of a policy."""
    hooks: dict[str, str] = {
        "scores": "score_chunks",
        "verify": "verify",
        "placement": "place_experts",
        "swaps": "swap_experts",
    }
    try:
        answered = kit.answered
    except Exception as error:  # A policy may raise any exception.
        reason = f"the policy cannot be used: {type(error).__name__}: {error}"
        return Facts(dict.fromkeys(hooks, reason))
    return Facts(
        {
            need: f"the policy does not answer {hook}"
            for need, hook in hooks.items()
            if hook not in answered
        }
    )


def _missing_of_drafter(kit: DrafterKit) -> dict[str, str]:
    plan = kit.plan
    assert kit.loaded.drafter is not None
    reads = plan.features or plan.final
    reasons = {
        "file": "" if kit.own_file else "the drafter is part of the target's own file",
        "features": "" if reads else "the drafter reads no features",
        "recurrent": "" if kit.recurrent else "the drafter keeps no recurrent state",
        "chain": "the drafter proposes trees of its own" if kit.states_trees() else "",
    }
    return {need: reason for need, reason in reasons.items() if reason}


def _missing(kit: Kit) -> Mapping[str, str]:
    plan, tiny = kit.plan, kit.tiny
    pools = any(isinstance(layer, Paged) and layer.window is None for layer in plan.layers)
    reasons = {
        "reference": "" if tiny.reference else "the tiny model names no reference",
        "checkpoint": "" if tiny.checkpoint else "the tiny model names no checkpoint",
        "row order": _row_order_unknown(kit),
        "eviction": "" if pools else "the state plan has no layer that sees all positions",
        "scores": "" if _scores(kit) else "the family does not answer score_chunks",
        "windows": "" if kit.window else "the state plan has no window",
        "experts": "" if any(kit.config.experts) else "the model has no experts",
        "chat template": ""
        if TEMPLATE in kit.file.metadata
        else "the tiny model has no chat template",
        "features": ""
        if hasattr(kit.loaded.model, "features")
        else "the model has no features, so no drafter that reads them can draft for it",
    }
    return {need: reason for need, reason in reasons.items() if reason}


def _scores(kit: Kit) -> bool:
    hooks = kit.family.hooks(kit.config)
    return any(one.hook == "score_chunks" for one in implementations(hooks))


def _row_order_unknown(kit: Kit) -> str:
    """The reason why the order of query and key rows cannot be checked; empty if it can."""
    architecture = kit.file.metadata.architecture
    if architecture not in NEIGHBOURS:
        return (
            f"the order of query and key rows in files of {architecture!r} is not known: "
            "look it up (llama_model_rope_type of llama.cpp)"
        )
    plain = {"blk.0.attn_q.weight", "blk.0.attn_k.weight"} <= set(kit.file.inventory)
    return "" if plain else "layer 0 has no separate matrices of queries and keys"


def _formats(kit: Kit) -> Mapping[str, str]:
    """Formats that no matrix of the tiny model can have, or that the kit cannot write."""
    reasons = {}
    for provided in kit.registry.quant_formats:
        format_ = provided.value
        if not can_write(format_):
            reasons[format_.name] = f"the kit cannot write {format_.name}"
        elif not any(can_hold(format_, tensor) for tensor in kit.file.inventory.values()):
            reasons[format_.name] = (
                f"no matrix of the tiny model has rows of whole blocks of {format_.block} numbers"
            )
    return reasons
