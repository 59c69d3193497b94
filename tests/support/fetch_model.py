"""A plain model of the op ``fetch``: Python lists, one expert after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from kinfolk_kernels.fetch.op import FetchArguments
from kinfolk_kernels.land.op import LandArguments

RECORD = 48


def few_programs(kernel: ModuleType) -> Any:
    """A fixture of a module: a copying back end launches few programs, for the interpreter runs
    them one after the other, and copies small pieces: the first program two of each record."""

    @pytest.fixture(autouse=True, scope="module")
    def patched() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "FETCH_PROGRAMS", 2)
            patch.setattr(kernel, "PIECE_WORDS", 4)
            yield

    return patched


@dataclass(frozen=True)
class Scene:
    """Sizes, and the seed of placement and choices."""

    experts: int
    bays: int
    pinned: int
    top_k: int
    decay: float
    seed: int
    rows: tuple[tuple[int, int], ...]
    """Of each step: all rows, and those that are no padding."""


@st.composite
def scenes(draw: st.DrawFn, most_experts: int = 12, most_rows: int = 5, steps: int = 8) -> Scene:
    experts = draw(st.integers(1, most_experts))
    bays = draw(st.sampled_from(sorted({0, 1, experts // 2, experts - 1, experts})))
    rows = st.integers(1, most_rows).flatmap(lambda r: st.tuples(st.just(r), st.integers(0, r)))
    return Scene(
        experts,
        bays,
        draw(st.integers(0, bays)),
        draw(st.integers(1, min(4, experts))),
        draw(st.sampled_from([0.99, 0.5, 1.0])),
        draw(st.integers(0, 2**16)),
        tuple(draw(st.lists(rows, min_size=1, max_size=steps))),
    )


@dataclass
class FetchModel:
    """The state of a layer. ``where``: the near bay of an expert, "far" or "absent"."""

    scene: Scene
    where: list[int | str] = field(default_factory=list)
    owner: list[int | None] = field(default_factory=list)
    score: list[np.float32] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    traffic: list[int] = field(default_factory=lambda: [0, 0, 0])

    def __post_init__(self) -> None:
        scene, chance = self.scene, random.Random(self.scene.seed)
        self.where = ["absent" if chance.random() < 0.1 else "far" for _ in range(scene.experts)]
        self.owner = [None] * scene.bays
        self.score = [np.float32(chance.choice([0, 0, 0.25, 1.5])) for _ in self.where]
        self.uses = [chance.randrange(5) for _ in self.where]
        order = list(range(scene.experts))
        chance.shuffle(order)
        for bay, expert in enumerate(order[: scene.bays]):
            if self.where[expert] == "far" and chance.random() < 0.8:
                self.where[expert], self.owner[bay] = bay, expert

    def choices(self) -> list[torch.Tensor]:
        """ids int64 [R, K] of each step; those of padding rows are no experts."""
        scene, chance = self.scene, random.Random(self.scene.seed + 1)
        found = []
        for rows, real in scene.rows:
            ids = [chance.sample(range(scene.experts), scene.top_k) for _ in range(rows)]
            ids[real:] = [[10**6] * scene.top_k] * (rows - real)
            found.append(torch.tensor(ids))
        return found

    def step(self, ids: torch.Tensor, real: int) -> None:
        chosen = [expert for row in ids[:real].tolist() for expert in row]
        for expert in range(self.scene.experts):
            self.uses[expert] += chosen.count(expert)
            used = np.float32(expert in chosen)
            self.score[expert] = self.score[expert] * np.float32(self.scene.decay) + used
        missed = [e for e in sorted(set(chosen)) if self.where[e] == "far"]
        self.traffic[0] += sum(isinstance(self.where[e], int) for e in set(chosen))
        while missed:
            bay = self._victim(chosen)
            if bay is None:
                break
            best = max(self.score[e] for e in missed)
            coming = next(e for e in missed if self.score[e] == best)
            missed.remove(coming)
            if (leaving := self.owner[bay]) is not None:
                self.where[leaving] = "far"
            self.where[coming], self.owner[bay] = bay, coming
            self.traffic[1] += 1
        self.traffic[2] += len(missed)

    def _victim(self, chosen: list[int]) -> int | None:
        bays = range(self.scene.pinned, self.scene.bays)
        for bay in bays:
            if self.owner[bay] is None:
                return bay
        may = [(self.score[e], e, bay) for bay in bays if (e := self.owner[bay]) not in chosen]
        return min(may)[2] if may else None

    def arguments(self, device: str = "cpu") -> FetchArguments:
        """The arguments of the op in this state, with a record of random bytes for each expert."""
        scene = self.scene
        generator = torch.Generator().manual_seed(scene.seed)
        far = torch.randint(0, 256, (scene.experts, RECORD), dtype=torch.uint8, generator=generator)
        near = torch.full((scene.bays, RECORD), 255, dtype=torch.uint8)
        for bay, expert in enumerate(self.owner):
            if expert is not None:
                near[bay] = far[expert]
        tensors = {**self.tensors(), "rows": torch.zeros(1, dtype=torch.int32)}
        return FetchArguments(
            near.to(device),
            far.pin_memory() if device == "cuda" else far,
            pinned=scene.pinned,
            decay=scene.decay,
            **{name: tensor.to(device) for name, tensor in tensors.items()},
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """What the op changes, by name of its argument."""
        bays = self.scene.bays
        bay_of = [
            where if isinstance(where, int) else -1 if where == "absent" else bays + expert
            for expert, where in enumerate(self.where)
        ]
        owner = [-1 if expert is None else expert for expert in self.owner]
        return {
            "bay_of_expert": torch.tensor(bay_of),
            "expert_of_bay": torch.tensor(owner, dtype=torch.int32),
            "score": torch.tensor(np.array(self.score, dtype=np.float32)),
            "uses": torch.tensor(self.uses),
            "traffic": torch.tensor(self.traffic),
        }

    def check(self, arguments: FetchArguments) -> None:
        """Everything is as the model has it, and records are where the map says."""
        for name, expected in self.tensors().items():
            found = getattr(arguments, name).cpu()
            assert found.dtype == expected.dtype, name
            assert torch.equal(found, expected), name
        for bay, expert in enumerate(self.owner):
            if expert is not None:
                assert torch.equal(arguments.near[bay].cpu(), arguments.far[expert])


def assert_follows(run: object, scene: Scene, device: str = "cpu") -> None:
    """``run(arguments, ids)`` does in every step what the model does."""
    model = FetchModel(scene)
    arguments = model.arguments(device)
    for ids, (_, real) in zip(model.choices(), scene.rows, strict=True):
        arguments.rows.fill_(real)
        run(arguments, ids.to(device))  # type: ignore[operator]
        model.step(ids, real)
        model.check(arguments)


def land_arguments(layer: FetchArguments, spare: int = 0) -> LandArguments:
    """The arguments of ``land`` for a layer with room for every expert without a bay, and for
    ``spare`` more, poisoned."""
    device = layer.bay_of_expert.device
    most = layer.count - layer.bays + spare
    return LandArguments(
        layer.far,
        torch.full((most, RECORD), 255, dtype=torch.uint8, device=device),
        layer.bay_of_expert,
        torch.full((layer.count,), -7, device=device),
        layer.rows,
        layer.bays,
    )


def assert_lands(run: object, scene: Scene, device: str = "cpu") -> None:
    """``run(arguments, ids)`` brings in every step what is far and was chosen, and changes nothing
    else. Bays may be empty here, so there is room for the experts of those too."""
    model = FetchModel(scene)
    layer = model.arguments(device)
    made = land_arguments(layer, scene.bays)
    for ids, (_, real) in zip(model.choices(), scene.rows, strict=True):
        made.rows.fill_(real)
        before = made.landing.cpu().clone()
        run(made, ids.to(device))  # type: ignore[operator]
        chosen = {expert for row in ids[:real].tolist() for expert in row}
        landed = [e for e in sorted(chosen) if model.where[e] == "far"]
        expected = [where if isinstance(where, int) else -1 for where in model.where]
        for place, expert in enumerate(landed):
            expected[expert] = scene.bays + place
            before[place] = layer.far[expert]
        assert made.landed.tolist() == expected
        assert torch.equal(made.landing.cpu(), before)
        model.check(layer)
