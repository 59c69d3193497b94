"""Kernels that start early wait for the kernels before them, where the device supports it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest
import torch

import kinfolk_kernels
from kinfolk_kernels import launch as launches
from kinfolk_kernels.act_and_mul.triton_backend import act_and_mul_kernel
from kinfolk_kernels.act_and_mul.triton_backend import launch as act_and_mul
from kinfolk_kernels.aot import compiled_for, instructions_of
from kinfolk_kernels.dependent import overlaps
from kinfolk_kernels.int8_rows import Int8Rows
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemm_f16 import gemm_f16
from kinfolk_kernels.linear.gemm_int8 import gemm_int8
from kinfolk_kernels.linear.gemv import gemv
from kinfolk_kernels.linear.prepare import F16Rows
from kinfolk_kernels.packing import empty
from kinfolk_kernels.rms_norm.triton_backend import norm
from kinfolk_kernels.row_outputs import RowOutputs

ROOT = Path(kinfolk_kernels.__path__[0])
START, WAIT = "start_dependents", "wait_for_producers"
THERE = re.compile(r"F\d != NONE")
"""A matrix that is not there has no programs."""


def kernels():
    """Every kernel of the package, by its name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for value in vars(importlib.import_module(name)).values():
            if getattr(value, "__name__", "").endswith("_kernel") and hasattr(value, "arg_names"):
                found[value.__name__] = value
    return found


def body_of(function) -> list[ast.stmt]:
    """The statements of a jitted function, without its docstring."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function.fn))).body
    assert isinstance(definition, ast.FunctionDef)
    statements = definition.body
    documented = isinstance(statements[0], ast.Expr) and isinstance(
        statements[0].value, ast.Constant
    )
    return statements[documented:]


def calls(statement: ast.stmt) -> list[str]:
    """Names of the functions that a statement calls, as they are written."""
    nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return [ast.unparse(node.func) for node in nodes]


def helper(function, name: str):
    """The jitted function that a name stands for in the module of another, if it is one."""
    found = function.fn.__globals__.get(name)
    return found if hasattr(found, "arg_names") else None


def writes(function, statement: ast.stmt) -> bool:
    """Whether a statement may write memory."""
    for name in calls(statement):
        if name == "tl.store" or name.startswith("tl.atomic"):
            return True
        inner = helper(function, name)
        if inner is not None and any(writes(inner, one) for one in body_of(inner)):
            return True
    return False


def waits(function, statements: list[ast.stmt]) -> bool:
    """Whether every path through the statements waits, before it writes or returns."""
    for statement in statements:
        if isinstance(statement, ast.If):
            other = THERE.fullmatch(ast.unparse(statement.test)) is not None
            other = other or waits(function, statement.orelse)
            if other and waits(function, statement.body):
                return True
        elif isinstance(statement, ast.Expr):
            for name in calls(statement):
                inner = helper(function, name)
                if name == WAIT or (inner is not None and waits(inner, body_of(inner))):
                    return True
        returns = any(isinstance(node, ast.Return) for node in ast.walk(statement))
        if returns or writes(function, statement):
            return False
    return False


def starts(function) -> list[tuple[object, list[list[str]], int]]:
    """Where a function, or one that it calls, lets dependents start: that function, the calls of
    its statements, and the index of the statement that does it."""
    statements = [calls(one) for one in body_of(function)]
    found = [(function, statements, i) for i, names in enumerate(statements) if START in names]
    inner = {name for names in statements for name in names} - {START, WAIT}
    for called in filter(None, (helper(function, name) for name in sorted(inner))):
        found += starts(called)
    return found


DEPENDENT = {name: kernel for name, kernel in kernels().items() if "PDL" in kernel.arg_names}


def branches(function, test: str) -> ast.If:
    """The ``if`` of a jitted function with this condition."""
    return next(
        node
        for statement in body_of(function)
        for node in ast.walk(statement)
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith(test)
    )


def reached(function, wanted, statement) -> bool:
    """Whether a statement calls the function ``wanted``, or one that does."""
    inner = filter(None, (helper(function, name) for name in calls(statement)))
    return any(
        one is wanted or any(reached(one, wanted, each) for each in body_of(one)) for one in inner
    )


def begins_others_in_time(kernel) -> bool:
    """Whether a kernel lets dependents start, in its first statement or after it has waited."""
    statements = [calls(one) for one in body_of(kernel)]
    if statements[0] == [START]:
        return len(starts(kernel)) == 1
    if [WAIT] not in statements:
        # A helper waits, and then lets others start.
        ((_, inner, start),) = starts(kernel)
        return [WAIT] in inner[:start]
    behind = statements.index([WAIT])
    found = starts(kernel)
    places = [
        start
        if function is kernel
        else min(i for i, one in enumerate(body_of(kernel)) if reached(kernel, function, one))
        for function, _, start in found
    ]
    once = len(found) == 1 or kernel is DEPENDENT["fetch_gate_up_kernel"]
    return bool(places) and once and min(places) > behind


@pytest.mark.parametrize("name", DEPENDENT)
def test_a_kernel_lets_others_start_and_waits_on_every_path(name):
    kernel = DEPENDENT[name]
    assert begins_others_in_time(kernel)
    assert waits(kernel, body_of(kernel))


@pytest.mark.parametrize("name", ["gate_up_kernel", "fetch_gate_up_kernel"])
def test_the_choice_of_experts_is_there_when_the_product_down_begins(name):
    """The product down reads the choice before it waits, so gate_up must have waited for it."""
    statements = [calls(one) for one in body_of(DEPENDENT[name])]
    assert statements[0] != [START]
    assert begins_others_in_time(DEPENDENT[name])


def test_a_fetched_matrix_down_is_there_when_its_product_begins():
    """It is read before the wait too: stored, released, and then others are let start."""
    copying = branches(DEPENDENT["fetch_gate_up_kernel"], "bay >= near").body
    lines = [ast.unparse(one) for one in copying]
    stored = max(i for i, line in enumerate(lines) if "tl.store(moved(down_ptr" in line)
    assert stored < lines.index("release(PDL)") < lines.index("start_dependents(PDL)")


def test_a_program_that_decides_about_a_miss_starts_others_when_the_map_is_released():
    decide = helper(DEPENDENT["fetch_gate_up_kernel"], "_decide")
    nothing = branches(decide, "misses == 0")
    assert "start_dependents(PDL)" in [ast.unparse(one) for one in nothing.body]
    assert not any(START in calls(one) for one in nothing.orelse)
    places = [i for i, one in enumerate(body_of(decide)) if START in calls(one)]
    assert [ast.unparse(body_of(decide)[i]) for i in places] == [ast.unparse(nothing)]
    stores = [ast.unparse(one) for one in branches(decide, "is_last").body]
    assert stores[-1] == "release(PDL)"
    assert any(line.startswith("store_residency") for line in stores[:-1])


def test_the_check_can_fail():
    statements = body_of(act_and_mul_kernel)
    without = [one for one in statements if WAIT not in calls(one)]
    assert len(without) == len(statements) - 1
    assert not waits(act_and_mul_kernel, without)
    assert not waits(act_and_mul_kernel, [*without, *statements])


def launch():
    half = torch.empty(2, 2048, dtype=torch.float16, device="meta")
    outputs = RowOutputs.make(2, 2048, torch.float16, True, half.device)
    return act_and_mul("silu", half, half, outputs)


def test_matrices_begin_in_order_or_wait_before_others_start():
    """The kernel after a matrix product may read the tables of a step before it waits."""
    device = torch.device("meta")
    matrix, out = empty("Q4_K", 64, 256, device), torch.empty(4, 64, device=device)
    rows = Int8Rows.make(4, 256, device)
    assert not gemm_int8([matrix], rows, [out]).early
    assert not gemm_f16([matrix], F16Rows.make(4, 256, device), [out]).early
    ((_, statements, start),) = starts(DEPENDENT["gemv_kernel"])
    assert [WAIT] in statements[:start]


@pytest.mark.parametrize(
    ("rows", "columns", "early"),
    [(2048, 4096, True), (12352, 2048, True), (17408, 5120, False), (5120, 17408, False)],
)
def test_matrices_times_one_row_begin_early_unless_they_are_large(rows, columns, early):
    device = torch.device("meta")
    matrix, out = empty("Q4_K", rows, columns, device), torch.empty(1, rows, device=device)
    launch = gemv([matrix], Int8Rows.make(1, columns, device), [out])
    assert launch.early == launch.constants["AHEAD"] == early
    assert not gemv([matrix], Int8Rows.make(2, columns, device), [out.expand(2, -1)]).early


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize(("rows", "columns"), [(2048, 4096), (12352, 2048)])
def test_the_first_weights_are_asked_for_before_the_wait(name, rows, columns):
    device = torch.device("meta")
    matrix, out = empty(name, rows, columns, device), torch.empty(1, rows, device=device)
    compiled = compiled_for(gemv([matrix], Int8Rows.make(1, columns, device), [out]), 90)
    before, wait, _ = "".join(instructions_of(compiled.asm["cubin"])).partition("ACQBULK")
    assert wait
    assert before.count("LDG") >= 8


@pytest.mark.parametrize(
    ("rows", "width", "grid", "early"),
    [
        (1, 5120, (1, 5), True),
        (8, 5120, (8, 5), True),
        (9, 5120, (9, 3), True),
        (16, 5120, (16, 2), True),
        (16, 2816, (16, 2), True),
        (24, 5120, (24, 1), True),
        (64, 5120, (64, 1), False),
        (16, 2048, (16, 4), False),
        (512, 5120, (512, 1), True),
    ],
)
def test_norms_that_would_crowd_begin_in_order(rows, width, grid, early):
    x = torch.empty(rows, width, device="meta")
    made = norm(x, (None,), 1e-6, [RowOutputs(x, None)])
    assert made.grid == grid
    assert made.early == early


@pytest.mark.parametrize(("capability", "early"), [(86, False), (89, False), (90, True)])
def test_only_devices_that_have_the_instructions_get_them(capability, early):
    compiled = compiled_for(launch(), capability)
    assert ("griddepcontrol.launch_dependents" in compiled.asm["ptx"]) == early
    assert ("griddepcontrol.wait" in compiled.asm["ptx"]) == early
    assert compiled.metadata.launch_pdl == early


def test_nothing_overlaps_off_the_gpu():
    assert not overlaps(torch.device("cpu"))


def test_the_device_decides(monkeypatch):
    import kinfolk_kernels.dependent as module

    monkeypatch.setattr(module, "_has_instructions", lambda index: index == 1)
    assert not overlaps(torch.device("cuda", 0))
    assert overlaps(torch.device("cuda", 1))


class Recorder:
    """A kernel in Triton's interpreter: keeps the options of its last launch."""

    arg_names = ("x", "PDL")

    def __getitem__(self, grid):
        return lambda **options: self.__dict__.update(options)


@pytest.mark.parametrize("early", [True, False])
def test_a_launch_begins_early_where_the_device_can(monkeypatch, early):
    monkeypatch.setattr(launches, "overlaps", lambda device: early)
    kernel = Recorder()
    Launch(kernel, (1,), {"x": torch.zeros(1)}, {}).run()
    assert kernel.PDL is early
    assert getattr(kernel, "launch_pdl", False) is early
