"""Asking the hooks of one loaded model: one typed method for each hook.

A :class:`ModelHookCaller` belongs to one model. Who is asked, and in which order, is fixed when it
is made: the policies as the user gave them, then the family, then the core. A wrong answer or an
exception is blamed on the plugin it came from.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import pluggy

from kinfolk.descriptors import resolve
from kinfolk.door import REFUSALS, ask, cause
from kinfolk.door import label as shown
from kinfolk.errors import HookValueError, PluginError
from kinfolk.expert_answers import placement_problem, swap_problem
from kinfolk.guarded import who_is
from kinfolk.hookcheck import MODEL, Implementation, implementations, problems
from kinfolk.hookspecs import PROJECT, ModelHooks, hookimpl
from kinfolk.plans import ExpertSwaps, Placement, SlotMapping, StatePlan
from kinfolk.score_api import ChunkQuery, Keep, Scores
from kinfolk.verify_api import Draft, Kept, RowSampling, VerifyStep

if TYPE_CHECKING:
    from kinfolk.descriptors import Family, PolicySpec
    from kinfolk.loader import Provided
    from kinfolk.model_api import GraphShape, Model, ModelInfo, StepFn
    from kinfolk.plans import ExpertResidency, ExpertStats, ExpertUse, StateLimits
    from kinfolk.registry import Registry

logger = logging.getLogger("kinfolk.plugins")

ANSWERS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "allocate_cache": StatePlan,
        "build_graph": Callable,
        "map_slots": SlotMapping,
        "place_experts": Placement,
        "score_chunks": Scores | Keep,
        "swap_experts": ExpertSwaps,
        "verify": Kept,
    }
)
"""The type of each hook's answer, whose fields were checked when it was built."""

UNANSWERED: Final = frozenset({"score_chunks"})
"""Hooks without a default: it is no error if nobody answers."""


class CoreHooks:
    """The core's default of ``build_graph``."""

    @hookimpl
    def build_graph(self, model: Model) -> StepFn:
        """The model's layers as they were built."""
        return model.forward


@dataclass(frozen=True, slots=True, eq=False)
class HookProvider:
    """An object with ``@hookimpl`` methods, and its name in messages."""

    label: str
    hooks: object

    @classmethod
    def of(cls, label: str, maker: str, make: Callable[[], object]) -> HookProvider:
        """The provider that ``make``, called ``maker`` in messages, creates for one model.

        Raises :class:`PluginError` if its hooks cannot be used.
        """
        hooks = ask(label, maker, make)
        if hooks is None or isinstance(hooks, ModuleType) or inspect.isclass(hooks):
            raise PluginError(
                f"{label}: {maker} returned {shown(hooks)}; "
                "it must return a new object with @hookimpl methods for each model"
            )
        if mistakes := problems(hooks):
            raise PluginError(f"{label}: {'; '.join(mistakes)}")
        return cls(label, hooks)


CORE_LABEL: Final = "core"
"""The core among the providers of hooks, in messages."""


def family_provider(family: Family, config: Any) -> HookProvider:
    """The family's hooks for one model. Raises :class:`PluginError` if they cannot be used."""
    return HookProvider.of(who_is(family), "Family.hooks", lambda: family.hooks(config))


def policy_providers(
    registry: Registry, names: Sequence[str], info: ModelInfo
) -> tuple[HookProvider, ...]:
    """The policies of ``--policy``, in the order given, created for one model.

    Raises :class:`SettingsError` for an unknown name and :class:`PluginError` for a broken policy.
    """

    def provider(provided: Provided[PolicySpec]) -> HookProvider:
        spec = provided.value
        label = f"policy {spec.name!r} of {provided.source}"
        return HookProvider.of(label, spec.create, lambda: resolve(spec.create)(info))

    return tuple(provider(registry.policy(name)) for name in names)


class ModelHookCaller:
    """The hooks of one loaded model.

    ``core`` are objects with the core's defaults, asked last and in that order. A model is opened
    in two steps, because a policy is told the state it is created for: make a caller without
    policies and ask ``allocate_cache``; create the policies; then go on :meth:`with_policies` and
    ask ``allocate_cache`` again, for a policy may answer or wrap it.
    """

    def __init__(
        self,
        family: HookProvider,
        core: Sequence[object] | None = None,
        policies: Sequence[HookProvider] = (),
        *,
        trace: bool = False,
    ) -> None:
        self._family = family
        self._core = tuple(core) if core is not None else (CoreHooks(),)
        self._trace = trace
        self._policies = {provider.label for provider in policies}
        self._core_error: BaseException | None = None
        self.providers = (
            *policies,
            family,
            *(HookProvider(CORE_LABEL, hooks) for hooks in self._core),
        )
        """In the order in which they are asked."""
        self._found = tuple(
            (one.label, tuple(i for i in implementations(one.hooks) if i.hook in MODEL))
            for one in self.providers
        )
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(ModelHooks)
        for label, found in reversed(self._found):  # pluggy asks the last one first
            for implementation in found:
                self._manager.register(self._blaming(label, implementation))

    def with_policies(self, policies: Sequence[HookProvider]) -> ModelHookCaller:
        """The same family and core, with policies asked before them."""
        return ModelHookCaller(self._family, self._core, policies, trace=self._trace)

    # -- the hooks

    def allocate_cache(self, config: Any, limits: StateLimits) -> StatePlan:
        """The state of a sequence of this model."""
        plan = cast(StatePlan, self._ask("allocate_cache", config=config, limits=limits))
        if len(plan.layers) != config.layers:
            raise HookValueError(
                f"hook allocate_cache: state of {len(plan.layers)} layers, the model has "
                f"{config.layers}; {self._order('allocate_cache')}"
            )
        return plan

    def build_graph(self, model: Model, shape: GraphShape) -> StepFn:
        """The function that runs a step of this shape."""
        return cast("StepFn", self._ask("build_graph", model=model, shape=shape))

    def map_slots(self, plan: StatePlan, residency: StateLimits) -> SlotMapping:
        """Which chunks may leave each pool of this model."""
        mapping = cast(SlotMapping, self._ask("map_slots", plan=plan, residency=residency))
        windows = tuple(rule.window for rule in mapping.rules)
        if windows != plan.windows:
            raise HookValueError(
                f"hook map_slots: the rules have windows {windows}, the state plan has "
                f"{plan.windows}; {self._order('map_slots')}"
            )
        if any(rule.tail < 1 for rule in mapping.rules):
            raise HookValueError(
                "hook map_slots: a rule keeps none of the last chunks; the last one is always "
                f"written to; {self._order('map_slots')}"
            )
        return mapping

    def place_experts(self, stats: ExpertStats, budget: int) -> Placement:
        """Which experts get a near bay of at most ``budget`` bytes, and how many are pinned."""
        placement = cast(Placement, self._ask("place_experts", stats=stats, budget=budget))
        if problem := placement_problem(placement, stats, budget):
            raise HookValueError(f"hook place_experts: {problem}; {self._order('place_experts')}")
        return placement

    def score_chunks(self, query: ChunkQuery) -> Scores | Keep | None:
        """Scores of the chunks of a sequence; ``None`` if nobody has an opinion."""
        if not self.asked("score_chunks"):
            return None
        answer = cast("Scores | Keep | None", self._ask("score_chunks", query=query))
        if isinstance(answer, Scores) and answer.values.shape[0] != query.chunks:
            raise HookValueError(
                f"hook score_chunks: {answer.values.shape[0]} scores for {query.chunks} chunks; "
                f"{self._order('score_chunks')}"
            )
        return answer

    def swap_experts(self, use: ExpertUse, residency: ExpertResidency) -> ExpertSwaps:
        """Which experts change their bays before the next step."""
        answer = cast(ExpertSwaps, self._ask("swap_experts", use=use, residency=residency))
        if problem := swap_problem(answer, residency):
            raise HookValueError(f"hook swap_experts: {problem}; {self._order('swap_experts')}")
        return answer

    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
        """Which drafted rows are kept, and the token after them."""
        kept = cast(Kept, self._ask("verify", step=step, draft=draft, sampling=sampling))
        if problem := kept.problem(step):
            raise HookValueError(f"hook verify: {problem}; {self._order('verify')}")
        return kept

    # -- who is asked

    def asked(self, hook: str) -> tuple[str, ...]:
        """Those who implement a hook, wrappers included, in the order in which they are asked."""
        return tuple(
            label for label, found in self._found if any(one.hook == hook for one in found)
        )

    def is_overruled(self, hook: str) -> bool:
        """Whether a policy implements this hook; its answer may need the host."""
        return not self._policies.isdisjoint(self.asked(hook))

    # -- asking

    def _ask(self, hook: str, **arguments: object) -> object:
        self._core_error = None
        wrappers = [
            label for label, found in self._found for one in found if one.hook == hook and one.wraps
        ]
        author = f"the wrapper of {' or '.join(wrappers)}"
        try:
            answer = getattr(self._manager.hook, hook)(**arguments)
        except REFUSALS:
            raise
        except (Exception, SystemExit) as error:
            if error is self._core_error:
                raise
            raise self._failure(author, hook, error) from error
        if hook in UNANSWERED and answer is None:
            return None
        if wrappers:
            self._check(author, hook, answer)
        elif answer is None:
            asked = self._order(hook) if self.asked(hook) else "it has no implementation"
            raise HookValueError(
                f"hook {hook}: no answer; {asked}. {self._family.label} must implement it, "
                "because the core has no default"
            )
        return answer

    def _blaming(self, label: str, implementation: Implementation) -> object:
        """An implementation, for pluggy, which blames ``label`` for an error or a wrong answer.

        A new object each time: two providers that compare equal stay two.
        """
        hook, function = implementation.hook, implementation.function

        def call(*arguments: object) -> object:
            try:
                answer = function(*arguments)
            except REFUSALS:
                raise
            except (Exception, SystemExit) as error:
                if label == CORE_LABEL:
                    self._core_error = error
                    raise
                raise self._failure(label, hook, error) from error
            if answer is not None:
                self._check(label, hook, answer)
                if self._trace:
                    logger.info("%s: %s answered; %s", hook, label, self._order(hook))
            return answer

        def wrap(*arguments: object) -> Generator[None, object, object]:
            answer: object = yield from function(*arguments)
            return answer

        blaming: Any = wrap if implementation.wraps else call
        blaming.__wrapped__ = function  # where pluggy reads the names of arguments
        return SimpleNamespace(**{hook: hookimpl(wrapper=implementation.wraps)(blaming)})

    def _check(self, author: str, hook: str, answer: object) -> None:
        kind = ANSWERS[hook]
        if not isinstance(answer, kind):
            problem = "answer" if answer is None else _name(kind)
            raise HookValueError(
                f"hook {hook}: {author} returned {shown(answer)}, which is no {problem}; "
                f"{self._order(hook)}"
            )

    def _failure(self, author: str, hook: str, error: BaseException) -> PluginError:
        return PluginError(f"{author} failed in hook {hook}: {cause(error)}; {self._order(hook)}")

    def _order(self, hook: str) -> str:
        return f"asked in this order: {', '.join(self.asked(hook))}"


def _name(kind: Any) -> str:
    """A type, or each of a union, with its module."""
    parts = get_args(kind) or (kind,)
    return " or ".join(f"{part.__module__}.{part.__name__}" for part in parts)
