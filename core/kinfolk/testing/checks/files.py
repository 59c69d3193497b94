"""Checks of model files: complete ones are read, damaged ones are refused by name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gguf
import numpy as np
import pytest

from kinfolk.errors import KinfolkError, ModelFormatError, UnsupportedModelError
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.values import Value
from kinfolk.plans import WeightPlan, WeightSpec
from kinfolk.quant.formats import QuantFormats
from kinfolk.testing.kit import Kit, assert_same
from kinfolk.testing.marks import each_tiny, needs
from kinfolk.testing.model_files import dequantised, rewrite
from kinfolk.weights.loader import load_weights

STRAY = "stray.weight"


class FileChecks:
    """Metadata keys, tensors and weight formats."""

    @each_tiny
    def test_tiny_model_is_usable(self, kinfolk_kit: Kit) -> None:
        """The tiny model is written, read by gguf-py and by kinfolk, and built."""
        tiny = kinfolk_kit.tiny
        assert tiny.reference or tiny.checkpoint, "tiny() names neither reference nor checkpoint"
        assert tiny.shape.architecture in kinfolk_kit.family.architectures
        names = kinfolk_kit.models
        assert len(set(names)) == len(names), f"tiny models with the same name: {names}"
        read = {
            tensor.name: tuple(tensor.shape) for tensor in gguf.GGUFReader(kinfolk_kit.path).tensors
        }
        ours = {name: tensor.shape[::-1] for name, tensor in kinfolk_kit.file.inventory.items()}
        assert read == ours
        assert kinfolk_kit.config.layers == len(kinfolk_kit.plan.layers)
        assert kinfolk_kit.config.architecture == tiny.shape.architecture

    @needs("tiny")
    def test_missing_keys_are_named(self, kinfolk_kit: Kit) -> None:
        """A missing required key is an error that names the key."""
        refused = [
            key
            for key, values in without_each(kinfolk_kit)
            if problem_of(kinfolk_kit, key, values) is not None
        ]
        assert refused, "no key of the architecture is required"

    @needs("tiny")
    def test_keys_of_another_type_are_named(self, kinfolk_kit: Kit) -> None:
        """A key of another type is an error that names the key, unless the family ignores it."""
        for key in own_keys(kinfolk_kit):
            values = {
                name: kinfolk_kit.file.metadata.value(name) for name in kinfolk_kit.file.metadata
            }
            values[key] = Value("string", "nonsense")
            problem = problem_of(kinfolk_kit, key, values)
            same = problem is None and self._read(kinfolk_kit, values) == kinfolk_kit.config
            assert problem is not None or same, (
                f"key {key!r} = 'nonsense' changed the configuration"
            )

    @each_tiny
    @needs("tiny")
    def test_every_tensor_is_used_once(self, kinfolk_kit: Kit) -> None:
        """The weight plan uses every tensor of the file once, or ignores it with a reason."""
        plan = kinfolk_kit.family.weight_plan(kinfolk_kit.config, kinfolk_kit.file.inventory)
        twice = [name for name, count in Counter(spec.name for spec in plan).items() if count > 1]
        assert not twice, f"weights with the same name: {twice}"
        used = {spec.tensor for spec in plan}
        assert not used & set(plan.ignored), "tensors that are used and ignored"
        assert all(plan.ignored.values()), "tensors that are ignored without a reason"
        left = set(kinfolk_kit.file.inventory) - used - set(plan.ignored)
        assert not left, f"tensors that the plan does not know: {sorted(left)}"
        for name in used:
            parts = [spec for spec in plan if spec.tensor == name]
            problem = wrong_use(kinfolk_kit.file.inventory[name], parts)
            assert not problem, f"tensor {name!r} {problem}"

    @needs("tiny")
    def test_unknown_tensors_are_reported(
        self, kinfolk_kit: Kit, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An unknown tensor is logged when the file is loaded, and otherwise ignored."""
        path = kinfolk_kit.folder / "stray.gguf"
        rewrite(kinfolk_kit.file, path, added={STRAY: np.ones((2, 32), np.float32)})
        with caplog.at_level(logging.WARNING, "kinfolk"):
            kinfolk_kit.load(path)
        assert any(STRAY in record.getMessage() for record in caplog.records)

    @needs("tiny")
    def test_biases_are_not_passed_over(self, kinfolk_kit: Kit) -> None:
        """The bias of a matrix is used, or is an error that names it."""
        there = kinfolk_kit.file.inventory
        plan = kinfolk_kit.family.weight_plan(kinfolk_kit.config, there)
        for name in {spec.tensor for spec in plan if len(there[spec.tensor].shape) > 1}:
            matrix = there[name]
            stem = name.rpartition(".")[0]
            bias = replace(matrix, name=f"{stem}.bias", shape=matrix.shape[:-1])
            inventory = Inventory([*there.values(), bias], path=kinfolk_kit.path)
            assert not self._passes_over(kinfolk_kit, inventory, bias.name), (
                f"{bias.name!r} is ignored: the matrix beside it is used, so answers would be wrong"
            )

    @each_tiny
    @needs("tiny")
    def test_missing_tensors_are_named(self, kinfolk_kit: Kit) -> None:
        """A missing required tensor is an error that names the tensor."""
        refused = 0
        for name in kinfolk_kit.file.inventory:
            rest = [tensor for tensor in kinfolk_kit.file.inventory.values() if tensor.name != name]
            refused += self._loads(kinfolk_kit, Inventory(rest, path=kinfolk_kit.path), name)
        assert refused, "no tensor is required"

    @each_tiny
    @needs("tiny")
    def test_misshapen_tensors_are_named(self, kinfolk_kit: Kit) -> None:
        """A tensor of another shape is an error that names the tensor."""
        plan = kinfolk_kit.family.weight_plan(kinfolk_kit.config, kinfolk_kit.file.inventory)
        for name in {spec.tensor for spec in plan}:
            tensor = kinfolk_kit.file.inventory[name]
            other = replace(tensor, shape=(*tensor.shape[:-1], tensor.shape[-1] + 32))
            changed = {**kinfolk_kit.file.inventory, name: other}
            inventory = Inventory(changed.values(), path=kinfolk_kit.path)
            assert self._loads(kinfolk_kit, inventory, name), f"{name!r} may have any shape"

    @needs("tiny")
    def test_quantised_weights_load(self, kinfolk_kit: Kit, quant_format: str) -> None:
        """A file in this format has the logits of its dequantised numbers, with dense weights and
        with blocks."""
        path = kinfolk_kit.folder / f"{quant_format}.gguf"
        rewrite(kinfolk_kit.file, path, matrices=QuantFormats().named(quant_format))
        spelled = dequantised(path, kinfolk_kit.folder / f"{quant_format}-spelled.gguf")
        tokens = kinfolk_kit.tokens[:40]
        models = kinfolk_kit.load(spelled), kinfolk_kit.load(path), kinfolk_kit.keeping_bytes(path)
        expected, *others = (kinfolk_kit.logits(loaded, tokens) for loaded in models)
        for logits in others:
            assert_same(logits, expected)

    # -- helpers --------------------------------------------------------------------------------

    def _read(self, kit: Kit, values: dict[str, Value]) -> Any:
        return kit.family.read_config(Metadata(values, kit.path))

    def _passes_over(self, kit: Kit, inventory: Inventory, name: str) -> bool:
        """Whether the plan ignores a tensor; otherwise it is used, or refused by name."""
        plans: list[WeightPlan] = []

        def load() -> None:
            plans.append(kit.family.weight_plan(kit.config, inventory))
            if name not in {*plans[0].ignored, *(spec.tensor for spec in plans[0])}:
                load_weights(plans[0], inventory, QuantFormats())

        return named_problem(load, name) is None and name in plans[0].ignored

    def _loads(self, kit: Kit, inventory: Inventory, name: str) -> bool:
        """Whether the inventory is refused, by an error that names the tensor ``name``."""

        def load() -> None:
            plan = kit.family.weight_plan(kit.config, inventory)
            if name not in inventory and name not in {spec.tensor for spec in plan}:
                return  # an optional tensor
            load_weights(plan, inventory, QuantFormats())

        return named_problem(load, name) is not None


def own_keys(kit: Kit) -> list[str]:
    prefix = f"{kit.file.metadata.architecture}."
    return [key for key in kit.file.metadata if key.startswith(prefix)]


def without_each(kit: Kit) -> Iterator[tuple[str, dict[str, Value]]]:
    """The metadata without one of the architecture's keys, for each of them."""
    meta = kit.file.metadata
    for missing in own_keys(kit):
        yield missing, {key: meta.value(key) for key in meta if key != missing}


def problem_of(kit: Kit, key: str, values: dict[str, Value]) -> KinfolkError | None:
    """The error of reading the configuration, ``None`` without one; it must name the key."""
    return named_problem(lambda: kit.family.read_config(Metadata(values, kit.path)), key)


def named_problem(action: Callable[[], object], name: str) -> KinfolkError | None:
    """The error of an action, ``None`` without one; it must be a :class:`KinfolkError` of the
    expected kinds and contain ``name``."""
    try:
        action()
    except (ModelFormatError, UnsupportedModelError) as error:
        if name in str(error):
            return error
        raise AssertionError(f"the error does not name {name!r}: {error}") from error
    except Exception as error:
        raise AssertionError(
            f"{name!r} led to {type(error).__name__}: {error}; expected a ModelFormatError or an "
            "UnsupportedModelError"
        ) from error
    return None


def wrong_use(tensor: TensorInfo, parts: list[WeightSpec]) -> str:
    """How the weights of a plan misuse a tensor; empty if together they are the tensor, once."""
    ranges = sorted(part.rows for part in parts if part.rows is not None)
    whole = [part for part in parts if part.rows is None]
    if ranges and whole:
        return "is used as a whole and in parts"
    if whole:
        # The token table may be the output matrix too.
        rest = [part for part in whole if part.role != "embedding"]
        return "" if len(rest) <= 1 else f"is used for {', '.join(part.name for part in rest)}"
    edges = [0, *(row for part in ranges for row in part), tensor.shape[0]]
    if any(stop != start for stop, start in zip(edges[::2], edges[1::2], strict=True)):
        return f"of {tensor.shape[0]} rows is cut into {ranges}, with gaps or overlaps"
    return ""
