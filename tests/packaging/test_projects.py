"""The root project and its members say the same: read from the TOML files, nothing is built."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

OUTER_FOLDERS = ("core", "kernels", "plugins", "tests", "docs", "examples", "benchmarks")

# The versions that the runtime is tested with: the CPU machine's and the GPU machine's.
TESTED = {
    "torch": ("2.11.0", "2.13.0"),
    "triton": ("3.6.0", "3.9.0"),
    "transformers": ("5.17.0", "5.23.0"),
    "python": ("3.11.7", "3.12.3"),
}

# Distributions whose import name is another word.
IMPORT_NAMES = {
    "pydantic-settings": "pydantic_settings",
    "prometheus-client": "prometheus_client",
}


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def requirements(lines: list[str]) -> dict[str, Requirement]:
    parsed = [Requirement(line) for line in lines]
    return {requirement.name: requirement for requirement in parsed}


def ours(name: str) -> bool:
    return name == "kinfolk" or name.startswith("kinfolk-")


@pytest.fixture(scope="module")
def root(repo) -> dict:
    return project(repo)


@pytest.fixture(scope="module")
def families(repo) -> list[Path]:
    folders = sorted(path for path in (repo / "plugins").iterdir() if path.is_dir())
    return [path for path in folders if path.name != "__pycache__"]


@pytest.fixture(scope="module")
def members(repo, families) -> dict[Path, dict]:
    return {folder: project(folder) for folder in (repo / "core", repo / "kernels", *families)}


@pytest.fixture(scope="module")
def version(repo) -> str:
    text = (repo / "core/kinfolk/version.py").read_text()
    return re.search(r'__version__ = "([^"]+)"', text).group(1)


def test_every_member_states_the_version_of_the_core(members, version):
    assert {data["project"]["version"] for data in members.values()} == {version}


def test_the_root_reads_its_version_from_the_core(root):
    assert root["project"]["dynamic"] == ["version"]
    assert root["tool"]["hatch"]["version"]["path"] == "core/kinfolk/version.py"


def test_the_split_core_has_the_name_of_the_bundle(root, members, repo):
    assert members[repo / "core"]["project"]["name"] == root["project"]["name"] == "kinfolk"


def test_the_bundle_packages_every_member(root, members, repo):
    packages = {
        f"{folder.relative_to(repo)}/{name}"
        for folder, data in members.items()
        for name in data["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    }
    assert set(root["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == packages


def test_an_editable_bundle_and_the_type_checker_see_every_member(root, members, repo):
    folders = {str(folder.relative_to(repo)) for folder in members}
    assert set(root["tool"]["hatch"]["build"]["dev-mode-dirs"]) == folders
    assert set(root["tool"]["mypy"]["mypy_path"]) == folders
    names = {
        name
        for data in members.values()
        for name in data["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    }
    assert set(root["tool"]["mypy"]["packages"]) == names
    assert set(root["tool"]["ruff"]["lint"]["isort"]["known-first-party"]) == names


def test_the_bundle_has_the_entry_points_of_its_plugins(root, families):
    together = {}
    for folder in families:
        together |= project(folder)["project"]["entry-points"]["kinfolk"]
    assert root["project"]["entry-points"]["kinfolk"] == together


def test_the_bundle_has_the_commands_of_the_core(root, members, repo):
    assert root["project"]["scripts"] == members[repo / "core"]["project"]["scripts"]


def test_bundle_and_core_bring_the_same_plugin_of_pytest(root, members, repo):
    points = root["project"]["entry-points"]["pytest11"]
    assert points == members[repo / "core"]["project"]["entry-points"]["pytest11"]
    assert points == {"kinfolk": "kinfolk.testing.pytest_plugin"}


@pytest.mark.parametrize("field", ["requires-python", "license"])
def test_every_member_agrees_with_the_root(root, members, field):
    assert {data["project"][field] for data in members.values()} == {root["project"][field]}


def test_dependencies_of_the_bundle_are_those_of_its_members(root, members):
    together: dict[str, str] = {}
    for data in members.values():
        for line in data["project"]["dependencies"]:
            requirement = Requirement(line)
            if ours(requirement.name):
                continue
            assert together.setdefault(requirement.name, line) == line
    assert {Requirement(line).name: line for line in root["project"]["dependencies"]} == together


def test_extras_of_the_members_exist_in_the_bundle(root, members):
    extras = root["project"]["optional-dependencies"]
    for data in members.values():
        for name, lines in data["project"].get("optional-dependencies", {}).items():
            assert extras[name] == [line for line in lines if not ours(Requirement(line).name)]


def test_a_plugin_requires_the_core_and_no_other_plugin(families, version):
    for folder in families:
        required = requirements(project(folder)["project"]["dependencies"])
        assert [name for name in required if ours(name)] == ["kinfolk"], folder.name
        assert required["kinfolk"].specifier.contains(version)
        assert not required["kinfolk"].specifier.contains("0.2.0")


def test_a_plugin_is_named_after_its_folder(families):
    for folder in families:
        data = project(folder)
        assert data["project"]["name"] == f"kinfolk-{folder.name}"
        module = f"kinfolk_{folder.name}"
        assert data["project"]["entry-points"] == {"kinfolk": {folder.name: f"{module}.plugin"}}
        assert data["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [module]


def test_the_version_ranges_admit_what_we_test_with(root):
    extras = root["project"]["optional-dependencies"]
    lines = [*root["project"]["dependencies"], *extras["testing"], *extras["triton"]]
    required = requirements(lines)
    for name in ("torch", "triton", "transformers"):
        for tested in TESTED[name]:
            assert required[name].specifier.contains(Version(tested)), f"{name} {tested}"
    python = SpecifierSet(root["project"]["requires-python"])
    assert all(python.contains(Version(tested)) for tested in TESTED["python"])
    assert not python.contains(Version("3.10.9"))


def test_triton_is_asked_for_by_nobody_but_developers_on_linux(root):
    assert "triton" not in requirements(root["project"]["dependencies"])
    (triton,) = requirements(root["project"]["optional-dependencies"]["triton"]).values()
    assert triton.marker is not None
    assert triton.marker.evaluate({"sys_platform": "linux"})
    assert not triton.marker.evaluate({"sys_platform": "darwin"})
    (ours_too,) = (
        line for line in root["project"]["optional-dependencies"]["dev"] if "kinfolk" in line
    )
    assert Requirement(ours_too).extras == {"testing", "triton"}


def test_outer_folders_are_no_packages(repo, families):
    outer = [repo / name for name in OUTER_FOLDERS] + families
    assert [str(path) for path in outer if (path / "__init__.py").exists()] == []
    inside_tests = (path.relative_to(repo) for path in (repo / "tests").rglob("__init__.py"))
    # Data may hold whole plugins.
    assert [str(path) for path in inside_tests if "data" not in path.parts] == []


def test_every_import_package_is_typed_and_every_member_has_a_readme(members):
    for folder, data in members.items():
        for name in data["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
            assert (folder / name / "__init__.py").is_file()
            assert (folder / name / "py.typed").is_file()
        assert (folder / data["project"]["readme"]).is_file()


def test_what_is_imported_is_declared_and_what_is_declared_is_imported(members):
    """Per member, so that a split install has what it imports."""
    for folder, data in members.items():
        packages = data["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        imported = set().union(*(third_party_imports(folder / name) for name in packages))
        declared = {
            IMPORT_NAMES.get(name, name)
            for name in requirements(data["project"]["dependencies"])
            if not ours(name)
        }
        provided = declared | transitively_declared(folder.name) | optional(data)
        assert imported <= provided, f"{folder.name} imports {sorted(imported - provided)}"
        assert declared <= imported, f"{folder.name} never uses {sorted(declared - imported)}"


def optional(data: dict) -> set[str]:
    """Import names that an extra brings: imported where they may be missing."""
    extras = data["project"].get("optional-dependencies", {})
    return set(requirements([line for lines in extras.values() for line in lines]))


def transitively_declared(folder: str) -> set[str]:
    """Import names that reach a member through the core, which it requires."""
    if folder in ("core", "kernels"):
        return set()
    core = project(Path(__file__).resolve().parents[2] / "core")
    names = requirements(core["project"]["dependencies"])
    return {IMPORT_NAMES.get(name, name) for name in names} | optional(core)


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module that run: type checkers read more."""
    yield node
    checked = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    children = node.orelse if checked else ast.iter_child_nodes(node)
    for child in children:
        yield from executed(child)


def third_party_imports(package: Path) -> set[str]:
    found = set()
    for path in package.rglob("*.py"):
        for node in executed(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.split(".")[0])
    return {
        name
        for name in found
        if name not in sys.stdlib_module_names and not re.match(r"kinfolk(_|$)", name)
    }
