"""Modules and functions stay small enough to be read in one go."""

from __future__ import annotations

import ast

MODULE_LINES = 500
HOST_LINES = 80
KERNEL_LINES = 150


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Decorated by `@triton.jit`, with or without arguments."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def functions(tree: ast.Module):
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_modules_are_short(library):
    lines = {source.path: source.text.count("\n") for source in library}
    assert {path: count for path, count in lines.items() if count > MODULE_LINES} == {}


def test_functions_are_short(library):
    long = []
    for source in library:
        for function in functions(source.tree):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > (KERNEL_LINES if is_kernel(function) else HOST_LINES):
                long.append(f"{source.path}:{function.lineno}: {function.name} has {lines} lines")
    assert long == []
