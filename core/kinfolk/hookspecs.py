"""The hooks: discovery hooks (broadcast, once a process) and model hooks (first result).

Discovery hooks are functions of a plugin's module and return a list of descriptors; the empty list
is nothing. Model hooks are methods of a plain object, one object for each loaded model: the core's
defaults, the policies switched on, and the family's own. They are asked in the order policies,
family, core. ``None`` means "ask the next" and nothing else.

An implementation names the arguments it wants and may leave out others, so a later version of the
core can add one. ``docs/hooks.md`` lists every hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pluggy

if TYPE_CHECKING:
    import click

    from kinfolk.descriptors import (
        DrafterSpec,
        Family,
        OpBackend,
        PolicySpec,
        QuantFormat,
    )
    from kinfolk.model_api import GraphShape, Model, StepFn
    from kinfolk.plans import (
        ExpertResidency,
        ExpertStats,
        ExpertSwaps,
        ExpertUse,
        Placement,
        SlotMapping,
        StateLimits,
        StatePlan,
    )
    from kinfolk.score_api import ChunkQuery, Keep, Scores
    from kinfolk.verify_api import Draft, Kept, RowSampling, VerifyStep

PROJECT: Final = "kinfolk"
API: Final = (1, 1)
"""A plugin states the version it was written for as ``KINFOLK_API``: same major, minor <= ours."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class DiscoveryHooks:
    """Asked once when a registry is built; each plugin on its own, in the order of their names.

    None of them may import torch. A plugin that raises, or returns anything but a list of valid
    descriptors, loses all its registrations and is reported; the others stay. A name that two
    plugins register belongs to neither. Wrappers, ``tryfirst`` and ``trylast`` are refused.
    """

    @hookspec
    def register_families(self) -> list[Family]:
        """Model families this plugin brings. Added in API 1.0."""
        return []

    @hookspec
    def register_op_backends(self) -> list[OpBackend]:
        """Implementations of ops. Added in API 1.0."""
        return []

    @hookspec
    def register_quant_formats(self) -> list[QuantFormat]:
        """Block formats of weights. Added in API 1.0."""
        return []

    @hookspec
    def register_drafters(self) -> list[DrafterSpec]:
        """Drafters for speculative decoding. Added in API 1.0."""
        return []

    @hookspec
    def register_policies(self) -> list[PolicySpec]:
        """Named sets of model hooks for ``--policy``. Added in API 1.0."""
        return []

    @hookspec
    def register_commands(self, cli: click.Group) -> None:
        """Add commands to ``cli``, a group of the plugin's own that the command line merges.

        The names of the core's commands are taken. Added in API 1.0.
        """


class ModelHooks:
    """Asked for one loaded model; the first answer that is not ``None`` counts.

    ``build_graph``, ``verify``, ``score_chunks`` and ``swap_experts`` are called on the engine's
    thread, the others while a model is opened. An answer of another type is an error that names the
    plugin; an exception fails the opening, or the step, but failures of ``score_chunks`` and
    ``swap_experts`` are only counted. Wrappers (``@hookimpl(wrapper=True)``) may change the answer;
    ``tryfirst`` and ``trylast`` are refused.
    """

    @hookspec(firstresult=True)
    def allocate_cache(self, config: Any, limits: StateLimits) -> StatePlan | None:
        """What a sequence keeps, when a model is opened. No default: every family states it.

        ``limits.codec``, if set, is the storage the user asked for. Added in API 1.0.
        """

    @hookspec(firstresult=True)
    def build_graph(self, model: Model, shape: GraphShape) -> StepFn | None:
        """The step function of a shape bucket, at its first use; must not allocate per call.

        Default: the model's layers as built. Added in API 1.0.
        """

    @hookspec(firstresult=True)
    def map_slots(self, plan: StatePlan, residency: StateLimits) -> SlotMapping | None:
        """What may leave each pool, when a model is opened: a rule for each of ``plan.windows``.

        ``residency`` says how large the pools are. Default: chunks of full attention may be
        evicted but for the first and the last few; windows decide for themselves. Added in API 1.0.
        """

    @hookspec(firstresult=True)
    def place_experts(self, stats: ExpertStats, budget: int) -> Placement | None:
        """Which experts get near bays, and how many of these are pinned, when a model with experts
        opens.

        All records together have at most ``budget`` bytes. Asked several times, with different
        budgets, as landing bays may take a part of them. Default: the most used ones for each
        byte, spread evenly over the layers where nothing was recorded; none is pinned. Added in
        API 1.0; ``stats.nbytes`` and ``Placement.pinned`` in API 1.1.
        """

    @hookspec(firstresult=True)
    def score_chunks(self, query: ChunkQuery) -> Scores | Keep | None:
        """Which chunks of a sequence are worth their place on the device, behind a step.

        Asked for sequences that are longer than their budget (``--kvflash``). ``KEEP`` leaves all
        as it is. Equal queries have equal scores, and a query is not changed. The host must not
        wait for the device here. A wrong answer is an error when the
        model is opened, where the hook is asked once for a try; later, an exception or a number
        that is not finite costs a round of selection and is counted, and never fails a request.
        Default: the scorer of the core (``--kvflash-policy``). Added in API 1.1.
        """

    @hookspec(firstresult=True)
    def swap_experts(self, use: ExpertUse, residency: ExpertResidency) -> ExpertSwaps | None:
        """Which experts change their bays, between steps, whenever their counters reach the host.

        All numbers are integers on the host. A pinned bay keeps its expert, and a bay or an expert
        is in one swap at most. A swap of an expert that is already near does nothing. Default: no
        swaps, because captured steps fetch what they miss. Added in API 1.1.
        """

    @hookspec(firstresult=True)
    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept | None:
        """Choose which drafted rows to keep, in every step that samples.

        Device tensors in and out, no host read. Default: sample every row, and keep drafted tokens
        that equal what their parent's row chose, which leaves the distribution unchanged. A drafter
        that ranks its proposals with the noise of the draw (``kinfolk.spec.gumbel``) has more of
        them kept. Added in API 1.0.
        """
