"""Faults of experts that are not all on the device: what fails is said, and nothing else is lost.

``pytest -m long`` breaks every launch of a request, of every family.
"""

from __future__ import annotations

import errno

import pytest

from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.errors import CapacityError, EngineError
from kinfolk.experts import arena
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import FinishReason, Request
from kinfolk.settings import load_settings
from kinfolk_kernels.fetch.op import FetchArguments

LIMITS = SchedulerLimits(slots=1, context=256, step_tokens=64, slice=32)
FAILS, WAITS = (5, 300, 71), (9, 640, 2, 33)
"""The prompt of a request whose step fails, and that of one that waits for its slot."""


@pytest.fixture(scope="module")
def opened(cases, registry):
    def run(case="laguna", **options):
        fixed = {"device": "cpu", "dtype": "f32", "context": 256, "slots": 1, "draft": "off"}
        settings = load_settings(**{**fixed, "expert_budget": "30%", **options})
        return load_model(cases / f"{case}.gguf", settings, registry)

    return run


def ended(ticket):
    tokens = []
    for event in ticket:
        tokens += getattr(event, "tokens", ())
    return tokens, event


def answer(engine, prompt=WAITS):
    return ended(engine.submit(Request("a", prompt, 2)))[0]


# -- steps ----------------------------------------------------------------------------------------


class Cable:
    """Counts the launches of ops, and breaks the one that is ``left`` launches ahead."""

    def __init__(self) -> None:
        self.kinds: list[type] = []
        self.left = 0

    def wrap(self, arguments, run):
        def launch(*operands, **named):
            self.kinds.append(type(arguments))
            self.left -= 1
            if self.left != 0:
                return run(*operands, **named)
            if isinstance(arguments, FetchArguments):
                run(*operands, **named)
                # In the middle of a copy, and of a change of the map.
                arguments.near[-1][:100] = 0xFF
                arguments.bay_of_expert[arguments.expert_of_bay[0].long()] = 1
            raise RuntimeError("a cable was pulled")

        return launch


def break_launches(opened, wrapped_ops, case, every=1):
    """Break one launch of a request after another, each ``every``-th and each fetch; returns how
    many were broken. The request that waits gets its tokens, and near records equal their homes."""
    with Engine(opened(case, expert_budget="all"), LIMITS) as usual:
        expected = answer(usual)
    cable, broken = Cable(), 0
    with wrapped_ops(**{backend.op: cable.wrap for backend in OP_BACKENDS}):
        far = opened(case)
    with Engine(far, LIMITS) as engine:
        answer(engine, FAILS)
        kinds = list(cable.kinds)
        for number, kind in enumerate(kinds, 1):
            if number % every and kind is not FetchArguments:
                continue
            cable.left = number
            fails = engine.submit(Request("fails", FAILS, 2))
            waits = engine.submit(Request("waits", WAITS, 2))
            _, event = ended(fails)
            assert event.reason is FinishReason.ERROR
            assert "a cable was pulled" in event.error
            assert ended(waits)[0] == expected, f"launch {number}, {kind.__name__}"
            engine.check_integrity()
            broken += 1
        assert kinds.count(FetchArguments) == 2 * len(far.experts.layers)
    return broken


@pytest.mark.cpu
def test_a_launch_that_fails_costs_its_request_alone(opened, wrapped_ops):
    assert break_launches(opened, wrapped_ops, "laguna", every=4) > 30


@pytest.mark.long
@pytest.mark.parametrize("case", ["qwen35moe", "laguna", "gemma4moe"])
def test_so_does_every_launch_of_every_family(opened, wrapped_ops, case):
    assert break_launches(opened, wrapped_ops, case) > 100


# -- host memory ----------------------------------------------------------------------------------


@pytest.fixture
def locks(monkeypatch):
    """``locks(error)``: memory is locked, or the driver refuses it with an error."""
    real = arena.HostArena

    def patched(error=""):
        def lock(memory):
            if error:
                raise RuntimeError(error)

        monkeypatch.setattr(
            "kinfolk.experts.cache.HostArena", lambda nbytes, device: real(nbytes, device, lock)
        )

    return patched


@pytest.mark.cpu
def test_too_little_host_memory_is_said_before_weights_are_read(opened, monkeypatch):
    def never(*arguments, **named):
        raise AssertionError("weights are read")

    with monkeypatch.context() as patch:
        patch.setattr("kinfolk.engine.loading.load_weights", never)
        with pytest.raises(
            CapacityError, match=r"homes? in host memory: 0.00 GiB, and --expert-host is 1e-06"
        ):
            opened(expert_host=1e-6)
    opened().experts.check_integrity()


@pytest.mark.cpu
def test_a_host_that_maps_no_memory_ends_loading_and_loses_nothing(opened, monkeypatch):
    def refuse(nbytes):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(arena, "_map", refuse)
        with pytest.raises(CapacityError, match=r"no 0.00 GiB for the homes.*--expert-budget all"):
            opened()
    opened().experts.check_integrity()


@pytest.mark.cpu
def test_locking_that_is_refused_ends_loading_or_leaves_the_model_parked(opened, locks):
    locks("out of memory, error 2 of cudaHostRegister")
    with pytest.raises(CapacityError, match=r"page-locked \(out of memory, error 2"):
        opened()
    locks()
    with Engine(opened(), LIMITS) as engine:
        expected = answer(engine)
        engine.park()
        locks("OS call failed, error 304 of cudaHostRegister")
        with pytest.raises(EngineError, match=r"cannot unpark.*page-locked \(OS call failed"):
            engine.unpark()
        assert "target" in engine.parked
        locks()
        engine.unpark()
        assert answer(engine) == expected
        engine.check_integrity()
