"""Asking the hooks of one loaded model: one typed method for each hook.

A :class:`ModelHookCaller` belongs to one model. Who is asked, and in which order, is fixed when it
is made: the policies as the user gave them, then the family, then the core. What comes back is
checked, and a bad value or an exception is blamed on the plugin it came from.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import pluggy

from kinfolk.descriptors import resolve
from kinfolk.door import REFUSALS, ask, cause
from kinfolk.door import label as shown
from kinfolk.errors import HookValueError, PluginError
from kinfolk.guarded import who_is
from kinfolk.hookcheck import MODEL, Implementation, implementations, problems
from kinfolk.hookspecs import PROJECT, ModelHooks, hookimpl
from kinfolk.hookvalues import CHECKS

if TYPE_CHECKING:
    from kinfolk.descriptors import Family, PolicySpec
    from kinfolk.loader import Provided
    from kinfolk.model_api import GraphShape, Model, ModelInfo, StepFn
    from kinfolk.plans import ExpertStats, Placement, SlotMapping, StateLimits, StatePlan
    from kinfolk.registry import Registry

logger = logging.getLogger("kinfolk.plugins")


class CoreHooks:
    """The core's answers, for those who are asked last."""

    @hookimpl
    def build_graph(self, model: Model) -> StepFn:
        """The model's layers as they were built."""
        return model.forward


@dataclass(frozen=True, slots=True, eq=False)
class HookProvider:
    """Somebody who is asked: an object with ``@hookimpl`` methods, and its name in messages."""

    label: str
    hooks: object


CORE = "core"


def family_provider(family: Family, config: Any) -> HookProvider:
    """The family's hooks for one model. :class:`PluginError` if they cannot be used."""
    return _provider(who_is(family), "Family.hooks", lambda: family.hooks(config))


def policy_providers(
    registry: Registry, names: Sequence[str], info: ModelInfo
) -> tuple[HookProvider, ...]:
    """The policies of ``--policy``, in the order given, created for one model.

    Raises :class:`SettingsError` for an unknown name and :class:`PluginError` for a broken policy.
    """
    return tuple(_policy_provider(registry.policy(name), info) for name in names)


def _policy_provider(provided: Provided[PolicySpec], info: ModelInfo) -> HookProvider:
    spec = provided.value
    label = f"policy {spec.name!r} of {provided.source}"
    return _provider(label, spec.create, lambda: resolve(spec.create)(info))


def _provider(label: str, maker: str, make: Callable[[], object]) -> HookProvider:
    hooks = ask(label, maker, make)
    if hooks is None or isinstance(hooks, ModuleType) or inspect.isclass(hooks):
        raise PluginError(
            f"{label}: {maker} returned {shown(hooks)}; "
            "it must return a new object with @hookimpl methods for each model"
        )
    found = problems(hooks)
    if found:
        raise PluginError(f"{label}: {'; '.join(found)}")
    return HookProvider(label, hooks)


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
        self._policies = tuple(policies)
        self._answers: list[tuple[str, object]] = []
        self._failed = ""
        self.providers = (*policies, family, *(HookProvider(CORE, hooks) for hooks in self._core))
        """Everybody in the order in which they are asked."""
        self._found = tuple(
            (provider, implementations(provider.hooks)) for provider in self.providers
        )
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(ModelHooks)
        # pluggy asks the plugin registered last first
        for index, (provider, found) in reversed(list(enumerate(self._found))):
            self._manager.register(
                self._recorded(provider, found), name=f"{index}: {provider.label}"
            )

    def with_policies(self, policies: Sequence[HookProvider]) -> ModelHookCaller:
        """The same family and core, with policies asked before them."""
        return ModelHookCaller(self._family, self._core, policies, trace=self._trace)

    # -- the hooks

    def allocate_cache(self, config: Any, limits: StateLimits) -> StatePlan:
        """What a sequence of this model keeps."""
        return cast("StatePlan", self._ask("allocate_cache", config=config, limits=limits))

    def build_graph(self, model: Model, shape: GraphShape) -> StepFn:
        """The function that runs a step of this shape."""
        return cast("StepFn", self._ask("build_graph", model=model, shape=shape))

    def map_slots(self, plan: StatePlan, residency: StateLimits) -> SlotMapping:
        """What may leave each pool of this model."""
        mapping = cast("SlotMapping", self._ask("map_slots", plan=plan, residency=residency))
        windows = tuple(rule.window for rule in mapping.rules)
        if windows != plan.windows:
            raise HookValueError(
                f"hook map_slots: the rules have windows {windows}, the state plan has "
                f"{plan.windows}; {self._order('map_slots')}"
            )
        return mapping

    def place_experts(self, stats: ExpertStats, budget: int) -> Placement:
        """Which experts get a bay."""
        placement = cast("Placement", self._ask("place_experts", stats=stats, budget=budget))
        if len(placement.bays) != len(stats.layers):
            raise HookValueError(
                f"hook place_experts: bays for {len(placement.bays)} layers, the model has "
                f"{len(stats.layers)}; {self._order('place_experts')}"
            )
        return placement

    def verify(self, step: Any, draft: Any, sampling: Any) -> Any:
        """Which drafted rows are kept, and the token after them: a kinfolk.spec.verify.Kept."""
        return self._ask("verify", step=step, draft=draft, sampling=sampling)

    # -- who is asked

    def asked(self, hook: str) -> tuple[str, ...]:
        """Those who implement a hook, wrappers included, in the order in which they are asked."""
        return tuple(
            provider.label
            for provider, found in self._found
            if any(implementation.hook == hook for implementation in found)
        )

    def is_default(self, hook: str) -> bool:
        """Only the core has a say in this hook, so the engine may take its own captured path."""
        return all(label == CORE for label in self.asked(hook))

    def is_overruled(self, hook: str) -> bool:
        """A policy has a say in this hook: what it does may need the host."""
        policies = {provider.label for provider in self._policies}
        return any(label in policies for label in self.asked(hook))

    # -- asking

    def _ask(self, hook: str, **arguments: object) -> object:
        self._answers.clear()
        self._failed = ""
        try:
            value = getattr(self._manager.hook, hook)(**arguments)
        except REFUSALS:
            raise
        except (Exception, SystemExit) as error:
            who = self._failed or self._wrappers(hook)
            if who == CORE:
                raise
            raise PluginError(
                f"{who} failed in hook {hook}: {cause(error)}; {self._order(hook)}"
            ) from error
        problem = "is no answer" if value is None else CHECKS[hook](value)
        if problem:
            raise HookValueError(self._complaint(hook, value, problem))
        if self._trace:
            logger.info("%s: %s answered; %s", hook, self._author(hook, value), self._order(hook))
        self._answers.clear()  # it must not keep tensors alive
        return value

    def _recorded(self, provider: HookProvider, found: Sequence[Implementation]) -> object:
        """A stand-in for the provider's object whose methods remember who answered and who failed.

        It also has an identity of its own: two objects that compare equal stay two plugins.
        """
        stand_in = _StandIn()
        for implementation in found:
            if implementation.hook in MODEL:
                function = implementation.function
                if not implementation.wraps:  # pluggy names a wrapper's code in its own errors
                    function = self._recorder(provider.label, function)
                mark = hookimpl(specname=implementation.hook, wrapper=implementation.wraps)
                mark(getattr(function, "__func__", function))
                setattr(stand_in, implementation.attribute, function)
        return stand_in

    def _recorder(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object) -> object:
            try:
                value = function(*arguments)
            except (Exception, SystemExit):
                self._failed = label
                raise
            if value is not None:
                self._answers.append((label, value))
            return value

        call.__wrapped__ = function  # type: ignore[attr-defined]  # where pluggy reads names
        return call

    # -- messages

    def _complaint(self, hook: str, value: object, problem: str) -> str:
        if value is None and not self._answers:
            asked = self._order(hook) if self.asked(hook) else "nobody implements it"
            return (
                f"hook {hook}: no answer; {asked}. {self._family.label} must implement it, "
                "because the core has no default"
            )
        return (
            f"hook {hook}: {self._author(hook, value)} returned {shown(value)}, which {problem}; "
            f"{self._order(hook)}"
        )

    def _author(self, hook: str, value: object) -> str:
        for label, answer in self._answers:
            if answer is value:
                return label
        return self._wrappers(hook)

    def _wrappers(self, hook: str) -> str:
        labels = [
            provider.label
            for provider, found in self._found
            if any(one.hook == hook and one.wraps for one in found)
        ]
        return f"the wrapper of {' or '.join(labels)}"

    def _order(self, hook: str) -> str:
        return f"asked in this order: {', '.join(self.asked(hook))}"


class _StandIn:
    """Holds the hooks of one provider for pluggy."""
