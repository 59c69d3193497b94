"""A model gives the same numbers on the GPU as on the CPU, in the types both can compute in."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine import step_rows
from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.ops.binding import Ops
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk_kernels.route.op import RouteArguments

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

log = logging.getLogger(__name__)

ROWS = 560
"""More than are multiplied as float16 whatever the type: their matrices are dequantised."""
FEW_ROWS = 160
NEAR_TIE = 0.1
"""Of a score: what rounding the hidden states of a few layers to bfloat16 can change it by. The
26B-A4B's largest was 0.08."""
EXPERT_MODELS = ("qwen3.5-35b-a3b", "laguna-xs.2", "gemma-4-26b-a4b")
LAYERS = 4
"""Of a synthetic file: enough for one of each kind."""

# Row by row, |a - b| / |b|: of the median row, and of the worst, by the GPU's type and the CPU's.
# In float32 only the order of sums differs. bfloat16 cannot hold what a 4-bit block stands for:
# rounding the 27B's weights to it, and computing all else in float32, was measured to cost 0.011
# and 0.020 by itself; float16, 0.0014 and 0.0031. Against the CPU in bfloat16, by the same back
# ends, that part is common, and the worst of 560 rows was 0.0201 off on an H100; others round in
# other places and are as far off as from float32.
LIMITS = {
    ("f32", "f32"): (1e-4, 1e-4),
    ("f16", "f32"): (5e-3, 1e-2),
    ("bf16", "bf16"): (2e-2, 2.5e-2),
    ("bf16", "f32"): (2e-2, 6e-2),
}


def of(name: str, *values: object) -> Any:
    """Parameters of a test of a model. One process at a time has a model: a few of these models in
    float32 fill a host's memory, and the CPU's logits are computed once."""
    return pytest.param(name, *values, marks=pytest.mark.xdist_group(name))


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())


@pytest.fixture(scope="module")
def files(registry, cases, tmp_path_factory) -> Callable[[str], Path]:
    """The reference case, the bundled model, and a few layers of a released size at full width."""

    @cache
    def find(name: str) -> Path:
        families = [provided.value for provided in registry.families.values()]
        if name == "case":
            return cases / "qwen35.gguf"
        if name == "bundled":
            return next(path for family in families if (path := family.bundled_model()))
        from kinfolk.synth.plan import find_shape, plan_synthetic
        from kinfolk.synth.write import write_synthetic

        path = tmp_path_factory.mktemp("synthetic") / "model.gguf"
        plan = plan_synthetic(find_shape(name, families), layers=LAYERS)
        write_synthetic(plan, path)
        return path

    return find


Route = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""The op ``route``, bound."""


@dataclass
class Routes:
    """Expert ids int64 [rows, K] of every layer of a run, in order, and runs that must use them.

    ``gaps``: where a following run would have chosen others, by how much of it the least score of
    its own choice exceeds the least of the given one.
    """

    ids: list[torch.Tensor] = field(default_factory=list)
    gaps: list[torch.Tensor] = field(default_factory=list)

    def record(self, arguments: RouteArguments, run: Route) -> Route:
        def recorded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ids, weights = run(x)
            self.ids.append(ids.cpu())
            return ids, weights

        return recorded

    def follow(self, arguments: RouteArguments, run: Route) -> Route:
        def followed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            own, _ = run(x)
            ids = self.ids[len(self.gaps)].to(x.device)
            scores = x.float() @ arguments.weight.T
            likely = scores.softmax(1) if arguments.score == "softmax" else scores.sigmoid()
            ranked = likely if arguments.bias is None else likely + arguments.bias
            least, granted = (ranked.gather(1, which).amin(1) for which in (own, ids))
            self.gaps.append(((least - granted) / least).cpu())
            weights = likely.gather(1, ids)
            weights = weights / weights.sum(1, keepdim=True) * arguments.scale
            expert_scale = arguments.expert_scale
            return ids, weights if expert_scale is None else weights * expert_scale[ids]

        return followed


@pytest.fixture(scope="module")
def score(registry, files, wrapped_ops) -> Callable[..., torch.Tensor]:
    """float32 logits [rows, vocabulary] of the same random tokens, on the CPU."""

    def run(
        name: str,
        device: str,
        dtype: str,
        route: Callable[[RouteArguments, Route], Route] = lambda _, run: run,
        rows: int = ROWS,
        **more: Any,
    ) -> torch.Tensor:
        settings = load_settings(device=device, dtype=dtype, **more)
        # One slice on both: sums and the choice of experts are compared slice by slice.
        slices = patch.object(step_rows, "ON_CPU", replace(step_rows.ON_CPU, slice=ROWS))
        with wrapped_ops(route=route), slices:
            loaded = load_model(files(name), settings, registry)
        tokens = np.random.default_rng(0).integers(0, loaded.info.vocabulary, ROWS)[:rows].tolist()
        return torch.cat([part.cpu() for part in logits(loaded, tokens)])

    return run


@pytest.fixture(scope="module")
def scored(score) -> Callable[..., torch.Tensor]:
    return cache(score)


@pytest.fixture(scope="module")
def like_the_cpu(registry) -> dict[str, Any]:
    """Settings with which a GPU runs what a CPU would."""
    backends = [provided.value for provided in registry.op_backends]
    ops = Ops(backends, device="cpu")
    first = {backend.op: ops.backends(backend.op)[0] for backend in backends}
    return {"weights": "dense", "op": first}


# The case is so narrow that bfloat16 changes it by more than the limit on any device.
@pytest.mark.parametrize(
    ("name", "dtype", "reference"),
    [
        of("case", "f32", "f32"),
        *(of("bundled", *types) for types in LIMITS),
        *(of("qwen3.5-27b", *types) for types in LIMITS),
        *(of(name, "f32", "f32") for name in EXPERT_MODELS),
    ],
)
def test_logits_on_the_gpu_are_those_of_the_cpu(
    score, scored, like_the_cpu, name, dtype, reference
):
    expected = scored(name, "cpu", reference, weights="dense")
    same = like_the_cpu if dtype == reference == "bf16" else {}
    found = score(name, "cuda", dtype, **same)
    median, worst = row_errors(f"{name} {dtype} to {reference}", found, expected)
    assert median <= LIMITS[dtype, reference][0]
    assert worst <= LIMITS[dtype, reference][1]


@pytest.mark.parametrize("name", [of(name) for name in ("bundled", "qwen3.5-27b")])
def test_few_rows_are_off_by_float16_in_float32_too(score, scored, name):
    expected = scored(name, "cpu", "f32", weights="dense")[:FEW_ROWS]
    found = score(name, "cuda", "f32", rows=FEW_ROWS)
    median, worst = row_errors(f"{name} f32, {FEW_ROWS} rows", found, expected)
    assert median <= LIMITS["f16", "f32"][0]
    assert worst <= LIMITS["f16", "f32"][1]


@pytest.mark.parametrize("name", [of(name) for name in EXPERT_MODELS])
def test_experts_agree_in_bfloat16_where_both_choose_the_same(score, like_the_cpu, name):
    """A rounding can turn a near tie of a random router, and a row then goes elsewhere: the GPU is
    given the CPU's choice, and its own may differ from that in near ties only."""
    routes = Routes()
    expected = score(name, "cpu", "bf16", routes.record, weights="dense")
    found = score(name, "cuda", "bf16", routes.follow, **like_the_cpu)
    gaps = torch.cat(routes.gaps)
    log.info("%s: %d of %d rows choose otherwise", name, (gaps > 0).sum(), len(gaps))
    _, worst = row_errors(f"{name} bf16 with the same experts", found, expected)
    assert worst <= LIMITS["bf16", "bf16"][1]
    assert gaps.max() <= NEAR_TIE


def row_errors(what: str, found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Relative L2 error of the median row and of the worst."""
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    median, worst = error.median().item(), error.max().item()
    log.info("%s: row error median %.2e, worst %.2e", what, median, worst)
    return median, worst
