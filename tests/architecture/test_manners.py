"""Rules that library code must keep."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

FAMILY_NAMES = re.compile(r"qwen|gemma|laguna", re.IGNORECASE)

# Absolute places of the machines this was written on, and the working notes beside the checkout.
MACHINE_PLACES = re.compile(
    r"(?<![\w.])\.\./" + "shared|(?<![\\w.])/(?:" + "work|root|opt|home|mnt)/"
)
INDEX_HOST = re.compile(r"(?:index-url|find-links|trusted-host)[= ]+\S*//|\bpypi\.org|/simple\b")


@pytest.fixture(scope="module")
def tracked(repo: Path) -> list[Path]:
    """Every text file that travels with the repository: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=repo,
        capture_output=True,
        check=True,
    ).stdout.decode()
    paths = [repo / name for name in listed.split("\0") if name]
    text = (".py", ".toml", ".md", ".txt", ".html", ".css", ".js", ".json", ".jsonl", ".sh", "")
    return [path for path in paths if path.suffix in text and path.is_file()]


def found(pattern: re.Pattern[str], paths: list[Path], repo: Path) -> list[str]:
    return [
        f"{path.relative_to(repo)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def test_core_and_kernels_name_no_family(repo, tracked):
    code = (repo / "core/kinfolk", repo / "kernels")
    inside = [path for path in tracked if any(folder in path.parents for folder in code)]
    assert inside
    assert found(FAMILY_NAMES, inside, repo) == []
    assert [str(path) for path in inside if FAMILY_NAMES.search(path.name)] == []


def test_no_file_names_a_place_on_some_machine(repo, tracked):
    here = Path(__file__).resolve()
    assert found(MACHINE_PLACES, [path for path in tracked if path != here], repo) == []


def test_no_file_names_a_package_index(repo, tracked):
    here = Path(__file__).resolve()
    assert found(INDEX_HOST, [path for path in tracked if path != here], repo) == []


def test_no_merge_is_half_done(repo, tracked):
    assert found(re.compile("^(<{7}|>{7}) "), tracked, repo) == []


def test_library_code_never_prints(library):
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in library
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert wrong == []


def test_no_exception_is_swallowed_unnamed(library):
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in library
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert wrong == []


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("environ", "environb", "getenv", "getenvb")
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return node.module == "pydantic_settings" or (
            node.module == "os" and bool(names & {"environ", "environb", "getenv", "getenvb"})
        )
    return isinstance(node, ast.Import) and any(a.name == "pydantic_settings" for a in node.names)


def test_the_environment_is_read_in_settings_only(library):
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in library
        for node in ast.walk(source.tree)
        if source.module != "kinfolk.settings" and reads_environment(node)
    ]
    assert wrong == []


def test_the_one_reader_of_the_environment_is_seen(core):
    """The check above would be empty if it could not see the reads that are allowed."""
    (settings,) = (source for source in core if source.module == "kinfolk.settings")
    assert any(reads_environment(node) for node in ast.walk(settings.tree))


def test_tests_are_neither_skipped_nor_expected_to_fail(repo):
    """A tier is deselected by its marker; a test that was selected runs and counts."""
    here = Path(__file__).resolve()
    excuses = re.compile(r"\bpytest\.(skip|xfail|importorskip)\b|\bmark\.(skip|skipif|xfail)\b")
    paths = [path for path in (repo / "tests").rglob("*.py") if path != here]
    assert found(excuses, paths, repo) == []
