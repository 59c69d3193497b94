"""Every op has a reference that defines its results; other back ends take the same arguments."""

from __future__ import annotations

import ast

import pytest

from kinfolk.ops.builtin import OP_BACKENDS


@pytest.fixture(scope="module")
def folders(repo):
    found = [path.parent for path in (repo / "kernels/kinfolk_kernels").glob("*/*.py")]
    assert found
    return sorted(set(found))


def signatures(path) -> dict[str, list[str]]:
    """Argument names of the public functions of a module."""
    return {
        node.name: [argument.arg for argument in node.args.args]
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def references(folder) -> list[str]:
    """Names of the functions that the ops of a folder have as references."""
    made = [
        node.value
        for node in ast.parse((folder / "op.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    ]
    return [ast.unparse(call.args[2]) for call in made if ast.unparse(call.func) == "Op"]


def test_every_op_has_a_reference(folders):
    assert [folder.name for folder in folders if not references(folder)] == []


def test_every_op_has_a_test_file(folders, repo):
    tests = repo / "tests/kernels"
    assert [f.name for f in folders if not (tests / f"test_{f.name}.py").is_file()] == []


def test_every_back_end_has_the_signature_of_its_reference(folders, repo):
    by_folder = {folder.name: signatures(folder / "op.py") for folder in folders}
    for backend in OP_BACKENDS:
        module, _, function = backend.function.partition(":")
        _, folder, name = module.split(".")
        found = signatures(repo / "kernels/kinfolk_kernels" / folder / f"{name}.py")
        assert found[function] == by_folder[folder][function], backend.function


def test_back_ends_are_asked_about_the_arguments_alone(folders, repo):
    for backend in OP_BACKENDS:
        if backend.supports:
            module, _, function = backend.supports.partition(":")
            _, folder, name = module.split(".")
            if (repo / "kernels/kinfolk_kernels" / folder / "op.py").is_file():
                found = signatures(repo / "kernels/kinfolk_kernels" / folder / f"{name}.py")
                assert found[function] == ["arguments"], backend.supports


def test_every_op_has_a_back_end(folders):
    registered = {backend.function.split(":")[0].split(".")[1] for backend in OP_BACKENDS}
    assert {folder.name for folder in folders} == registered
