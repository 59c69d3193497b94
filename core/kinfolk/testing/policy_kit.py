"""The kit of one policy under test: a tiny model that it is switched on for."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from kinfolk.descriptors import PolicySpec
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.errors import PluginError
from kinfolk.hookcheck import MODEL, implementations
from kinfolk.hooks import HookProvider, ModelHookCaller, policy_providers
from kinfolk.loader import PluginRecord, Provided
from kinfolk.registry import Registry
from kinfolk.settings import Settings, load_settings
from kinfolk.testing.kit import Kit


class PolicyKit:
    """The policy called ``name`` among the installed ones, or in ``registry``.

    Properties are computed at first use and raise errors of the policy. Files are written to
    ``folder``. The model runs on the CPU in float32.
    """

    def __init__(self, name: str, folder: Path, registry: Registry | None = None) -> None:
        self.name = name
        self.folder = folder
        self._registry = registry

    @cached_property
    def registry(self) -> Registry:
        return self._registry or Registry.discover(load_settings())

    @cached_property
    def provided(self) -> Provided[PolicySpec]:
        """The policy and its source; :class:`SettingsError` if it is not installed."""
        return self.registry.policy(self.name)

    @cached_property
    def record(self) -> PluginRecord:
        """The record of the plugin that provides the policy."""
        plugin = self.provided.plugin
        return next(record for record in self.registry.records if record.name == plugin)

    @cached_property
    def model(self) -> Kit:
        """The kit of the first family whose tiny model has a layer that sees all positions."""
        for name in sorted(self.registry.families):
            if self.registry.families[name].value.tiny() is None:
                continue
            kit = Kit(name, self.folder, self.registry)
            if None in kit.plan.windows:
                return kit
        raise PluginError(
            f"policy {self.name!r}: no installed family has a tiny model with a layer that sees "
            "all positions, the checks need one"
        )

    @cached_property
    def mixture(self) -> Kit:
        """The kit of the first family whose tiny model has experts."""
        folder = self.folder / "mixture"
        folder.mkdir(exist_ok=True)
        for name in sorted(self.registry.families):
            if self.registry.families[name].value.tiny() is None:
                continue
            kit = Kit(name, folder, self.registry)
            if any(kit.config.experts):
                return kit
        raise PluginError(
            f"policy {self.name!r}: no installed family has a tiny model with experts, the checks "
            "need one"
        )

    @cached_property
    def mixture_hooks(self) -> ModelHookCaller:
        """The hooks of that model with the policy."""
        settings = self.mixture.settings(policy=(self.name,))
        return load_model(self.mixture.path, settings, self.registry).hooks

    def provider(self) -> HookProvider:
        """The policy's hooks, created for one model. Raises :class:`PluginError` if they cannot be
        used."""
        (provider,) = policy_providers(self.registry, (self.name,), self.model.loaded.info)
        return provider

    def alone(self) -> ModelHookCaller:
        """A caller that asks a new object of the policy, and nobody after it."""
        return ModelHookCaller(HookProvider("nobody", object()), (), [self.provider()])

    @cached_property
    def answered(self) -> frozenset[str]:
        """The model hooks that the policy implements."""
        found = implementations(self.provider().hooks)
        return frozenset(one.hook for one in found if one.hook in MODEL)

    # -- running it -----------------------------------------------------------------------------

    def settings(self, **options: Any) -> Settings:
        """Settings of the tiny model with this policy."""
        context = self.model.loaded.limits.context
        return self.model.settings(policy=(self.name,), context=context, **options)

    def paged_settings(self) -> Settings:
        """The same with the smallest budget, so that a long prompt is paged."""
        return self.model.paged_settings(policy=(self.name,))

    @cached_property
    def loaded(self) -> LoadedModel:
        return load_model(self.model.path, self.settings(), self.registry)
