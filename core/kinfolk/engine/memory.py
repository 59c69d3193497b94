"""Plans a device's memory before a model is loaded.

State gets what weights, work space, graphs and a margin leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kinfolk.engine.sizing import GIB, size_state, state_bytes
from kinfolk.errors import CapacityError
from kinfolk.plans import StateLimits, StatePlan, WeightPlan

LAUNCH_BYTES = 64 * 2**10
"""Bytes that a driver keeps for each launch of a captured step. Measured on an H200: 65 MB for a
step of about 1000 launches."""

LAYER_LAUNCHES = 18
"""Launches of a layer, about."""

CAPTURE_SHARE = 0.025
"""Most of a device's memory for the launches of captured steps: with less, fewer are kept."""

LARGE_CAPTURE_SHARE = 0.04
"""The same of a device with ``LARGE_DEVICE`` bytes, which has some to spare: on smaller ones each
captured step takes the memory of some thousand positions."""

LARGE_DEVICE = 64 * 2**30

FEWEST_CAPTURES = 8

SCRATCH = 64 * 2**20
"""Bytes for the work space of matrix libraries and for dequantised tiles."""

MARGIN = 0.03
"""Part of a device's memory that is not planned: allocators lose some to fragmentation."""

HOST_SHARE = 0.5
"""Part of the host's memory beside weights that state may use; other programs need the rest."""

CACHE_SHARE = 0.25
"""Part of the host's free memory that demoted checkpoints may use by default."""

MOST_CACHE_BYTES = 8 * GIB
"""Most bytes of it by default."""

WEIGHTS = "weights"
"""The part of a plan that is for the model's weights, without bays of experts."""

PAGED = "chunks that left the device"
"""The part of a host's plan that is for chunks of sequences longer than their budget."""

BAYS = "experts"
"""The part of a plan that is for bays of experts, if some experts are not on the device."""

HOMES = "homes of experts"
"""The part of a host's plan that is for all experts, if some have no bay."""

DEMOTED = "demoted checkpoints"
"""The part of a host's plan that is for checkpoints in host memory."""

FEATURE_BYTES = 2
"""Of a number of features, which are bfloat16."""

_COPIES = 4
"""Intermediate results of a layer that exist at once, each as wide as the widest."""

_CAPTURED_COPIES = 8
"""The same in a captured step, with the partial results of attention."""

_DRAFTING = 3
"""float32 copies of the logits that a drafter makes to rank its candidates."""

_SAMPLING = 10
"""float32 copies of the logits that sampling makes when every parameter is used."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How ``usable`` bytes of a device are divided: ``parts`` by name, and ``limits``, the state
    that fits. ``others``: bytes of the host's memory that are left to other programs. Bytes for
    demoted checkpoints, and ``paged`` ones for chunks that leave the device, are
    ``limits.host_bytes``: a part of the plan if the device is the host, and beside it otherwise."""

    usable: int
    parts: dict[str, int]
    limits: StateLimits
    others: int = 0
    paged: int = 0
    state: dict[str, int] = field(default_factory=dict)
    """The parts that are state."""

    @property
    def beside(self) -> int:
        """Bytes of host memory for state beside the device's memory."""
        within = DEMOTED in self.parts or PAGED in self.parts
        return 0 if within else self.limits.host_bytes or 0

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts, limits = _sum(self.parts), self.limits
        return (
            f"{self.usable / GIB:.2f} GiB: {parts}; context {limits.context}, {limits.slots} "
            f"slots, {limits.checkpoints} checkpoints and {(limits.host_bytes or 0) / GIB:.2f} GiB "
            "of host memory for more"
        )


def plan_memory(
    *,
    usable: int,
    weights: int,
    drafter: int = 0,
    experts: int | None = None,
    homes: int = 0,
    work: int,
    graphs: int,
    is_host: bool,
    plan: StatePlan,
    wanted: StateLimits,
    model_context: int,
    asked: int | None,
    flexible: frozenset[str],
    cache: int | None = 0,
    paged: int = 0,
    host_free: int = 0,
) -> MemoryPlan:
    """Divide ``usable`` bytes. ``drafter``: bytes of a drafter's weights; ``experts``: those of
    bays on the device, if ``weights`` are without experts, and ``homes`` of host memory;
    ``cache``: bytes of host memory for demoted checkpoints, ``None`` = by default, of
    ``host_free``. If the device is the host, the default is what the state leaves, and no more than
    usual. ``paged``: bytes of host memory for chunks that leave the device.

    ``asked`` is the context the user asked for, ``flexible`` names the fields of ``wanted`` that
    are defaults and may be lowered. Raises :class:`CapacityError` with the arithmetic.
    """
    fixed = {WEIGHTS: weights, "drafter": drafter, "work space": work}
    if not drafter:
        del fixed["drafter"]
    if experts is not None:
        fixed[BAYS] = experts
    if is_host and homes:
        fixed[HOMES] = homes
    if not is_host:
        fixed |= {"graphs": graphs, "margin": int(usable * MARGIN)}
    left = usable - sum(fixed.values())
    others = max(0, int(left * (1 - HOST_SHARE))) if is_host else 0
    left -= others
    if left <= 0:
        needed = "A smaller quantisation or a larger device is needed"
        if is_host and homes:
            needed = (
                "Use --expert-budget all, which keeps no second copy, or a smaller quantisation"
            )
        elif experts and not is_host:
            needed = "Lower --expert-budget, or use a smaller quantisation"
        raise CapacityError(
            f"the model does not fit: {_sum(fixed)}, and {usable / GIB:.2f} GiB can be used. "
            f"{needed}"
        )
    if is_host and paged:
        fixed[PAGED] = paged
        left -= paged
    if not wanted.checkpoints:
        cache = 0  # a checkpoint is taken on the device first
    elif not is_host:
        cache = cache_bytes(cache, max(0, host_free - paged - homes))
    elif cache:
        fixed[DEMOTED] = cache
        left -= cache
    saves = bool(cache) and not is_host and plan.has_recurrent
    # Beside experts that are not all on the device, bays are worth more.
    wanted = replace(wanted, spare_slots=int(saves and not homes))
    try:
        limits = size_state(plan, wanted, model_context, left, asked, flexible)
    except CapacityError as error:
        taken = fixed | ({"left to others": others} if is_host else {})
        less = ", or --expert-budget" if experts and not is_host else ""
        raise CapacityError(f"{error}{less} ({usable / GIB:.2f} GiB less {_sum(taken)})") from None
    state = state_bytes(plan, limits)
    if is_host and cache is None:
        cache = min(cache_bytes(None, usable), left - sum(state.values()))
        fixed[DEMOTED] = cache
    limits = replace(limits, host_bytes=(cache or 0) + paged)
    return MemoryPlan(usable, fixed | state, limits, others, paged, state)


def cache_bytes(asked: int | None, free: int) -> int:
    """Bytes of a host's memory for demoted checkpoints, of which ``free`` are free. Raises
    :class:`CapacityError` if more were asked for."""
    if asked is None:
        return min(int(free * CACHE_SHARE), MOST_CACHE_BYTES)
    if asked > free:
        raise CapacityError(
            f"--cache-memory asks for {asked / GIB:.2f} GiB, the host has {free / GIB:.2f} GiB free"
        )
    return asked


def work_bytes(
    weights: WeightPlan, rows: int, logit_rows: int, features: int = 0, draft: int = 0
) -> int:
    """An estimate of the bytes of a step's intermediate results, for ``rows`` rows and
    ``logit_rows`` rows of logits. ``features``: numbers of a row of features; ``draft``: bytes of
    the draft behind the step."""
    widest, vocabulary = _widths(weights)
    step = rows * features * FEATURE_BYTES + rows * widest * 4 * _COPIES
    return max(step + logit_rows * vocabulary * 4 * _SAMPLING, draft) + SCRATCH


def most_captures(usable: int, layers: int, wanted: int) -> int:
    """How many captured steps of a model of ``layers`` layers are kept, at most ``wanted``."""
    share = LARGE_CAPTURE_SHARE if usable >= LARGE_DEVICE else CAPTURE_SHARE
    fitting = int(usable * share) // _capture_bytes(layers)
    return min(wanted, max(FEWEST_CAPTURES, fitting))


def graph_bytes(
    weights: WeightPlan,
    layers: int,
    captures: int,
    rows: int,
    logit_rows: int,
    features: int = 0,
    draft: int = 0,
) -> int:
    """An estimate of the bytes of ``captures`` captured steps. Their intermediate results share
    memory; the largest have ``rows`` rows with so many ``features``, and ``logit_rows`` rows of
    logits. ``draft`` are the bytes of the largest draft."""
    widest, vocabulary = _widths(weights)
    pool = (
        rows * features * FEATURE_BYTES
        + rows * widest * 4 * _CAPTURED_COPIES
        + logit_rows * vocabulary * 4 * _SAMPLING
    )
    return captures * _capture_bytes(layers) + max(pool, draft)


def draft_bytes(vocabulary: int, rows: int) -> int:
    """An estimate of the bytes of a draft's intermediate results, for ``rows`` rows of lanes."""
    return rows * vocabulary * 4 * _DRAFTING


def _capture_bytes(layers: int) -> int:
    return layers * LAYER_LAUNCHES * LAUNCH_BYTES


def _widths(weights: WeightPlan) -> tuple[int, int]:
    """The widest result of a matrix but the head, and the size of the vocabulary."""
    matrices = [spec.shape for spec in weights if spec.role == "matrix" and len(spec.shape) == 2]
    vocabulary = max((spec.shape[0] for spec in weights if spec.role == "embedding"), default=0)
    widths = [max(shape) for shape in matrices if shape[0] != vocabulary]
    return max(widths, default=0), vocabulary


def _sum(parts: dict[str, int]) -> str:
    return " + ".join(f"{name} {nbytes / GIB:.2f}" for name, nbytes in parts.items())
