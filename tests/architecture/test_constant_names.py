"""One name, one meaning: constants of core and kernels that share a name are equal."""

from __future__ import annotations

import ast
from collections import defaultdict

TYPE_PARAMETERS = {"TypeVar", "ParamSpec"}


def constants(tree: ast.Module):
    """Public constants of a module, with their values as source; what Triton compiles in counts as
    the constant that it is made of."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            (target,), value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        names, values = [target], [value]
        if isinstance(target, ast.Tuple):
            names = target.elts
            values = value.elts if isinstance(value, ast.Tuple) else [value] * len(names)
        for name, each in zip(names, values, strict=True):
            if isinstance(name, ast.Name) and name.id.isupper() and not name.id.startswith("_"):
                text = ast.unparse(each)
                function = ast.unparse(each.func) if isinstance(each, ast.Call) else ""
                made_of_it = function == "tl.constexpr" and text.endswith(f".{name.id})")
                if function not in TYPE_PARAMETERS and not made_of_it:
                    yield name.id, text


def test_constants_of_one_name_are_equal(core, kernels):
    values = defaultdict(dict)
    for source in [*core, *kernels]:
        for name, value in constants(source.tree):
            values[name].setdefault(value, []).append(source.module)
    assert {name: found for name, found in values.items() if len(found) > 1} == {}


def test_a_chunk_has_as_many_positions_for_the_kernels_as_for_the_core():
    from kinfolk import types
    from kinfolk_kernels import rows

    assert rows.CHUNK_POSITIONS == types.CHUNK_POSITIONS
