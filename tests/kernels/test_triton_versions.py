"""What the newest Triton compiles and an older one that we name does not."""

from __future__ import annotations

import ast
from pathlib import Path

import kinfolk_kernels

ROOT = Path(kinfolk_kernels.__path__[0])


def jitted():
    """Each jitted function of the package, with where it is."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                "jit" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                yield f"{path.relative_to(ROOT)}: {node.name}", node


def test_no_default_of_a_jitted_function_is_a_plain_string():
    """Triton 3.6 passes it on as it is, and fails where it is used."""
    functions = dict(jitted())
    assert len(functions) > 200
    assert [
        name
        for name, node in functions.items()
        for default in (*node.args.defaults, *node.args.kw_defaults)
        if isinstance(default, ast.Constant) and isinstance(default.value, str)
    ] == []
