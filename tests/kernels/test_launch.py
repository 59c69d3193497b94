"""A launch uses the kernel that was compiled for its arguments, and no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from kinfolk_kernels import launch as launches
from kinfolk_kernels.launch import Launch, compiled_only

NAMES = ["x_ptr", "count", "free", "eps", "SIZE"]


class Compiled:
    """Stands for what Triton returns: takes all values in the kernel's order."""

    def __init__(self, ran):
        self._ran = ran

    def __getitem__(self, grid):
        return lambda *values: self._ran.append((grid, values))


class Kernel:
    """A stand-in for a jitted function that compiles at every request, and counts."""

    arg_names = NAMES
    do_not_specialize = ("free",)

    def __init__(self):
        self.compiled, self.ran, self.asked_for = 0, [], []

    def warmup(self, *, grid, **values):
        self.asked_for.append((grid, values))
        return len(self.asked_for)

    def __getitem__(self, grid):
        def compile_and_run(**_):
            self.compiled += 1
            return Compiled(self.ran)

        return compile_and_run


@pytest.fixture
def launch(monkeypatch):
    monkeypatch.setattr(launches, "_COMPILED", {})
    arguments = {"x_ptr": torch.zeros(64), "count": 32, "free": 5, "eps": 1e-6}
    return Launch(Kernel(), (3, 2), arguments, {"SIZE": 8})


def changed(launch, **arguments):
    return replace(launch, arguments={**launch.arguments, **arguments})


def test_the_second_time_what_was_compiled_gets_all_values_in_order(launch):
    launch.run()
    other = changed(launch, x_ptr=torch.ones(8), count=48, free=7, eps=0.5)
    other.run()
    assert launch.kernel.compiled == 1
    ((grid, values),) = launch.kernel.ran
    assert grid == (3, 2, 1)
    assert values[0] == other.arguments["x_ptr"].data_ptr()
    assert values[1:] == (48, 7, 0.5, 8)


def test_the_order_of_arguments_does_not_matter(launch):
    launch.run()
    turned = dict(reversed(launch.arguments.items()))
    replace(launch, arguments=turned).run()
    assert launch.kernel.ran[0][1][1:] == (32, 5, 1e-6, 8)


@pytest.mark.parametrize(
    "other",
    [
        {"x_ptr": torch.zeros(64)[1:]},
        {"x_ptr": torch.zeros(64).half()},
        {"count": 1},
        {"count": 33},
        {"count": 2**31},
        {"free": 2**31},
        {"eps": 1},
    ],
    ids=lambda other: str(next(iter(other))),
)
def test_what_code_depends_on_is_compiled_anew(launch, other):
    launch.run()
    changed(launch, **other).run()
    assert launch.kernel.compiled == 2
    changed(launch, **other).run()
    assert len(launch.kernel.ran) == 1


@pytest.mark.parametrize("field", [{"warps": 8}, {"registers": 96}, {"constants": {"SIZE": 16}}])
def test_options_and_constants_are_compiled_in(launch, field):
    launch.run()
    replace(launch, **field).run()
    assert launch.kernel.compiled == 2


def test_an_interpreted_kernel_is_asked_every_time(launch):
    ran = []

    class Interpreted:
        arg_names = NAMES

        def __getitem__(self, grid):
            return lambda **_: ran.append(grid)

    for _ in range(2):
        replace(launch, kernel=Interpreted()).run()
    assert ran == [(3, 2)] * 2


def test_what_is_only_compiled_is_asked_for_once_and_not_run(launch):
    with compiled_only() as made:
        launch.run()
        changed(launch, count=48).run()
        changed(launch, count=33).run()
    assert list(made) == [1, 2]
    assert launch.kernel.compiled == 0
    assert launch.kernel.ran == []
    ((grid, values), (_, other)) = launch.kernel.asked_for
    assert grid == (3, 2)
    assert (values["SIZE"], values["count"], values["num_warps"]) == (8, 32, 4)
    assert other["count"] == 33


def test_what_was_compiled_before_is_not_asked_for(launch):
    launch.run()
    with compiled_only():
        launch.run()
    assert launch.kernel.asked_for == []
    assert launch.kernel.ran == []
    launch.run()
    assert len(launch.kernel.ran) == 1


def test_other_threads_run_what_they_launch(launch):
    with compiled_only(), ThreadPoolExecutor(1) as other:
        other.submit(launch.run).result()
    assert launch.kernel.compiled == 1
