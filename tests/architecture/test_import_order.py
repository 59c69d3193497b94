"""Imports go one way: a module of the core imports from its own row or from lower ones."""

from __future__ import annotations

import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def rows() -> list[tuple[str, ...]]:
    """Modules and packages directly under kinfolk, lowest first, as architecture.md has them."""
    page = (REPO / "docs" / "architecture.md").read_text()
    (block,) = re.findall(r"^```rows\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [tuple(line.split()) for line in block.splitlines()]


ROWS = rows()
ROW = {name: index for index, names in enumerate(ROWS) for name in names}

PLUGINS = ("hookspecs", "guarded", "hooks", "loader", "registry")

# These are beside the engine and import little of the rest. Drafters of the core, in `spec`, are
# plugins, which the core converts like those of families.
NARROW = {
    "convert": {"convert", "gguf", "quant", "text", "spec", *PLUGINS},
    "synth": {"synth", "gguf", "quant", "text", *PLUGINS},
}

KERNELS_MAY_IMPORT = {"torch", "triton", "numpy", "kinfolk_kernels"}


def part(module: str) -> str:
    """`kinfolk.gguf.reader.GGUFFile` -> `gguf`; the package itself -> ``."""
    pieces = module.split(".")
    name = pieces[1] if len(pieces) > 1 else ""
    return "cli" if name == "__main__" else name


def edges(core):
    """(source, line, from part, to part) for every import of the core inside the core."""
    for source in core:
        for target, line in source.imports():
            if target.split(".")[0] == "kinfolk" and part(source.module):
                yield source, line, part(source.module), part(target)


def test_every_module_of_the_core_has_one_row(core):
    parts = {part(source.module) for source in core} - {""}
    assert sorted(parts - set(ROW)) == []
    assert len(ROW) == sum(len(names) for names in ROWS)


def test_imports_of_the_core_go_down(core):
    wrong = [
        f"{source.path}:{line}: {origin} (row {ROW[origin]}) imports {target} (row {ROW[target]})"
        for source, line, origin, target in edges(core)
        if target in ROW and ROW[target] > ROW[origin]
    ]
    assert wrong == []


def test_convert_and_synth_see_files_and_plugins_only(core):
    low = {name for name, row in ROW.items() if row < ROW["hookspecs"]}
    wrong = [
        f"{source.path}:{line}: imports {target}"
        for source, line, origin, target in edges(core)
        if origin in NARROW and target in ROW and target not in NARROW[origin] | low
    ]
    assert wrong == []


def test_the_front_ends_are_imported_by_nothing_below(core):
    front = {"server", "daemon", "cli"}
    wrong = [
        f"{source.path}:{line}: imports {target}"
        for source, line, origin, target in edges(core)
        if target in front and origin not in front
    ]
    assert wrong == []


def test_the_core_imports_no_family(core, families):
    names = {f"kinfolk_{name}" for name in families}
    wrong = [
        f"{source.path}:{line}: imports {target}"
        for source in core
        for target, line in source.imports()
        if target.split(".")[0] in names
    ]
    assert wrong == []


def test_kernels_import_torch_triton_and_numpy_only(kernels):
    wrong = [
        f"{source.path}:{line}: imports {target}"
        for source in kernels
        for target, line in source.imports()
        if (top := target.split(".")[0]) not in KERNELS_MAY_IMPORT
        and top not in sys.stdlib_module_names
    ]
    assert wrong == []


def test_plugins_never_import_one_another(plugins):
    wrong = [
        f"{source.path}:{line}: imports {target}"
        for source in plugins
        for target, line in source.imports()
        if (top := target.split(".")[0]).startswith("kinfolk_")
        and top not in (source.package, "kinfolk_kernels")
    ]
    assert wrong == []


def test_no_modules_import_one_another_in_a_circle(library):
    """Typing imports count too: a reader of one module of a circle has to read all of them."""
    modules = {source.module for source in library}
    order = TopologicalSorter()
    for source in library:
        for target, _ in source.imports():
            imported = target if target in modules else target.rpartition(".")[0]
            if imported in modules and imported != source.module:
                order.add(source.module, imported)
    order.prepare()  # raises CycleError with the modules


@pytest.mark.parametrize(("upper", "lower"), [("engine", "sched"), ("cli", "engine")])
def test_the_rows_are_what_the_design_says(upper, lower):
    """The page defines the rows; this test detects a reversed order."""
    assert ROW[lower] < ROW[upper]
