"""Experts in page-locked host memory: loaded, swapped without a wait, and read by steps."""

from __future__ import annotations

import pytest
import torch
from expert_files import write_wide_experts

from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.experts.arena import HostArena, lock_with_driver
from kinfolk.registry import Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk_kernels.fetch.op import FETCHED

pytestmark = pytest.mark.gpu

TOKENS = [5, 300, 71, 9, 640, 2, 33, 500, 17, 90, 4, 4]


@pytest.fixture(scope="module")
def opened(cases):
    registry = Registry.discover(load_settings())

    def run(case, **settings):
        fixed = {"device": "cuda", "context": 256, "slots": 2, "draft": "off", "memory": 4}
        return load_model(cases / f"{case}.gguf", load_settings(**{**fixed, **settings}), registry)

    return run


def test_the_arena_is_locked_until_it_is_released():
    arena = HostArena(1 << 22, torch.device("cuda", 0))
    records = arena.take(4, 1 << 20)
    assert records.is_pinned()
    records.fill_(3)
    assert (records.to("cuda", non_blocking=True) == 3).all()
    arena.release()
    assert not records.is_pinned()
    assert not records.any()


@pytest.mark.parametrize("case", ["qwen35moe", "laguna", "gemma4moe"])
def test_homes_and_bays_have_the_same_bytes_and_swaps_need_no_wait(opened, case):
    far = opened(case, expert_budget="40%")
    experts = far.experts
    assert experts is not None
    experts.check_integrity()
    layer = next(iter(experts.layers.values()))
    away = next(expert for expert in range(layer.count) if expert not in layer.placed)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer.swap(away, 0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(layer.expert_of_bay[0]) == away
    experts.check_integrity()


@pytest.mark.parametrize("case", ["qwen35moe", "laguna", "gemma4moe"])
@pytest.mark.parametrize("budget", ["0%", "30%", "90%"])
def test_logits_are_those_of_a_model_with_all_experts_near(opened, case, budget):
    usual, far = opened(case), opened(case, expert_budget=budget)
    for rows in (1, 5):
        found, expected = (torch.cat(list(logits(m, TOKENS, chunk=rows))) for m in (far, usual))
        assert torch.equal(found, expected)
    assert far.experts is not None
    far.experts.check_integrity()


@pytest.mark.parametrize("case", ["qwen35moe", "laguna", "gemma4moe"])
@pytest.mark.parametrize("graphs", ["on", "off"])
def test_requests_that_fetch_in_products_get_the_tokens_of_full_residency(
    cases, tmp_path, case, graphs
):
    """One after the other, so that steps are alike; prompts fetch in a launch of its own."""
    path = write_wide_experts(cases / f"{case}.gguf", tmp_path / "wide.gguf")
    registry, found = Registry.discover(load_settings()), []
    limits = SchedulerLimits(slots=2, context=256, step_tokens=64, slice=32)
    for budget in ("all", "75%"):
        settings = load_settings(
            device="cuda", memory=4, context=256, slots=2, draft="off", graphs=graphs,
            weights="packed", expert_budget=budget,
        )  # fmt: skip
        loaded = load_model(path, settings, registry)
        with Engine(loaded, limits) as engine:
            requests = [Request(str(i), (7, i, 300), 40) for i in range(3)]
            found.append([_tokens(engine.submit(request)) for request in requests])
            engine.check_integrity()
    assert found[0] == found[1]
    assert ("fetch_experts", "triton") in loaded.ops.decisions
    assert sum(int(layer.traffic[FETCHED]) for layer in loaded.experts.layers.values()) > 0


def _tokens(ticket):
    return [token for event in ticket for token in getattr(event, "tokens", ())]


@pytest.mark.parametrize("case", ["qwen35moe", "laguna", "gemma4moe"])
@pytest.mark.parametrize("swap", ["on", "off"])
def test_prompts_whose_experts_land_have_the_same_logits(opened, case, swap):
    """In one slice of 600 rows, and in recorded steps of 40."""
    usual = opened(case, context=1024)
    far = opened(case, context=1024, expert_budget="75%", expert_swap=swap)
    assert all(layer.landing is not None for layer in far.experts.layers.values())
    for rows in (600, 40):
        found, expected = (
            torch.cat(list(logits(m, TOKENS * 60, chunk=rows))) for m in (far, usual)
        )
        assert torch.equal(found, expected)
    far.experts.check_integrity()


def test_kernels_that_cannot_read_them_leave_it_to_torch(opened):
    """Triton rounds no rows of float32 to the halves of packed matrices."""
    usual, far = (
        opened("laguna", dtype="f32", expert_budget=budget, graphs="off")
        for budget in ("all", "30%")
    )
    found, expected = (torch.cat(list(logits(m, TOKENS, chunk=5))) for m in (far, usual))
    assert torch.equal(found, expected)
    far.experts.check_integrity()


@pytest.mark.parametrize("options", [{}, {"expert_budget": "30%", "expert_swap": "off"}])
def test_counting_for_a_profile_moves_nothing(opened, tmp_path, options):
    usual = opened("laguna")
    counted = opened("laguna", expert_profile=tmp_path / "profile.json", **options)
    layers = counted.experts.layers.values()
    before = [layer.expert_of_bay.tolist() for layer in layers]
    for rows in (1, 5):
        found, expected = (torch.cat(list(logits(m, TOKENS, chunk=rows))) for m in (counted, usual))
        assert torch.equal(found, expected)
    assert [layer.expert_of_bay.tolist() for layer in layers] == before
    top_k = counted.source.ready.experts.top_k
    assert all(int(layer.uses.sum()) == 2 * len(TOKENS) * top_k for layer in layers)


def test_a_refusal_to_lock_is_not_reported_again_by_the_next_kernel():
    """What is locked already is refused; the memory that was locked stays so."""
    gpu = torch.device("cuda", 0)
    arena = HostArena(1 << 20, gpu)
    with pytest.raises(RuntimeError, match="error 712 of cudaHostRegister"):
        lock_with_driver(arena.take(1, 1 << 20).view(-1), gpu)
    assert int(torch.ones(4, device=gpu).sum()) == 4
    arena.release()
