"""A plugin that uses every discovery hook, as a third party would write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinfolk import hookimpl
from kinfolk.descriptors import (
    DrafterSpec,
    Family,
    FamilyBase,
    OpBackend,
    PolicySpec,
    QuantFormat,
)

if TYPE_CHECKING:
    import click

KINFOLK_API = (1, 0)


class Toy(FamilyBase):
    name = "toy"
    architectures = ("toy",)
    drafter_architectures = ("toy-draft",)

    def read_config(self, meta: Any) -> Any:
        return meta

    def weight_plan(self, config: Any, inventory: Any) -> Any:
        return None

    def build(self, config: Any, weights: Any, context: Any) -> Any:
        return None

    def hooks(self, config: Any) -> object:
        from kinfolk_toy.hooks import ToyHooks

        return ToyHooks(config)


@hookimpl
def register_families() -> list[Family]:
    return [Toy()]


@hookimpl
def register_op_backends() -> list[OpBackend]:
    return [OpBackend("rope", "toy", "kinfolk_toy.ops:rope", priority=5)]


@hookimpl
def register_quant_formats() -> list[QuantFormat]:
    return [QuantFormat("TOY_1", 9001, 32, 18, "kinfolk_toy.ops:dequantize")]


@hookimpl
def register_drafters() -> list[DrafterSpec]:
    return [DrafterSpec("parrot", "kinfolk_toy.hooks:parrot", "says it again")]


@hookimpl
def register_policies() -> list[PolicySpec]:
    return [PolicySpec("frugal", "kinfolk_toy.hooks:Frugal", "keeps less")]


@hookimpl
def register_commands(cli: click.Group) -> None:
    @cli.command("toy")
    def toy() -> None:
        """Say hello."""
