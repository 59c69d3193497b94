"""What a model will take of a device's memory, before any of it is loaded.

Weights, work space, graphs and a margin come first; what they leave is given to state.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.engine.sizing import GIB, size_state, state_bytes
from kinfolk.errors import CapacityError
from kinfolk.plans import StateLimits, StatePlan, WeightPlan

GRAPHS = 256 * 2**20
"""Bytes for captured graphs and the buffers they run on, on a device that has them."""

SCRATCH = 64 * 2**20
"""Bytes for the work space of matrix libraries and for dequantised tiles."""

MARGIN = 0.03
"""Part of a device that is left alone: allocators lose some to fragments."""

HOST_SHARE = 0.5
"""Part of what weights leave that state may take on the host, which is everybody's."""

_COPIES = 4
"""Intermediate results of a layer that are alive at once, each as wide as the widest."""

_SAMPLING = 10
"""float32 copies of the logits that sampling with every field makes."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``usable`` bytes of a device, the named ``parts`` that will take them, and ``limits``, the
    state that fits among them. ``others`` are bytes of the host that nothing here may take."""

    usable: int
    parts: dict[str, int]
    limits: StateLimits
    others: int = 0

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts, limits = _sum(self.parts), self.limits
        return (
            f"{self.usable / GIB:.2f} GiB: {parts}; context {limits.context}, {limits.slots} slots"
        )


def plan_memory(
    *,
    usable: int,
    weights: int,
    work: int,
    is_host: bool,
    plan: StatePlan,
    wanted: StateLimits,
    model_context: int,
    asked: int | None,
    flexible: frozenset[str],
) -> MemoryPlan:
    """Divide ``usable`` bytes.

    ``asked`` is the context the user wants, ``flexible`` names the fields of ``wanted`` that nobody
    asked for and that may be lowered. Raises :class:`CapacityError` with the arithmetic.
    """
    fixed = {"weights": weights, "work space": work}
    if not is_host:
        fixed |= {"graphs": GRAPHS, "margin": int(usable * MARGIN)}
    left = usable - sum(fixed.values())
    others = max(0, int(left * (1 - HOST_SHARE))) if is_host else 0
    left -= others
    if left <= 0:
        raise CapacityError(
            f"the model does not fit: {_sum(fixed)}, and {usable / GIB:.2f} GiB can be used. "
            "A smaller quantisation or a larger device is needed"
        )
    try:
        limits = size_state(plan, wanted, model_context, left, asked, flexible)
    except CapacityError as error:
        taken = fixed | ({"left to others": others} if is_host else {})
        raise CapacityError(f"{error} ({usable / GIB:.2f} GiB less {_sum(taken)})") from None
    return MemoryPlan(usable, fixed | state_bytes(plan, limits), limits, others)


def work_bytes(weights: WeightPlan, rows: int, logit_rows: int) -> int:
    """An estimate of what a step of so many rows takes besides weights and state."""
    matrices = [spec.shape for spec in weights if spec.role == "matrix" and len(spec.shape) == 2]
    vocabulary = max((spec.shape[0] for spec in weights if spec.role == "embedding"), default=0)
    widths = [max(shape) for shape in matrices if shape[0] != vocabulary]
    widest = max(widths, default=0)
    return rows * widest * 4 * _COPIES + logit_rows * vocabulary * 4 * _SAMPLING + SCRATCH


def _sum(parts: dict[str, int]) -> str:
    return " + ".join(f"{name} {nbytes / GIB:.2f}" for name, nbytes in parts.items())
