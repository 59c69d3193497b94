"""Plugins in distributions of their own: installed beside the wheel, used and checked there.

These tests use only copies of files, never the repository itself.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

OFFLINE = ("--no-index", "--no-build-isolation")
EXAMPLES = (
    *("kinfolk-qwen3", "kinfolk-policy-demo", "kinfolk-scorer-demo"),
    *("kinfolk-op-demo", "kinfolk-drafter-demo", "kinfolk-pinned-demo"),
)
FAMILIES = ("gemma4", "laguna", "qwen35", "qwen35moe")


def run(environment, *words, code=0) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment as a user who has activated it."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST", "KINFOLK")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    variables |= {
        "PATH": f"{environment.python.parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=environment.work,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def plain(borrowing, wheels):
    """The wheel and one third-party family, without the tools for tests."""
    environment = borrowing("others")
    environment.pip("install", "--no-index", wheels["bundle"])
    return environment


@pytest.fixture(scope="module")
def sources(repo, room) -> dict[str, Path]:
    """Copies of the examples: building in the repository would leave things behind."""
    found = {}
    for name in EXAMPLES:
        found[name] = room / "examples" / name
        shutil.copytree(repo / "examples" / name, found[name])
    return found


@pytest.fixture(scope="module")
def said_without_tools(plain, sources) -> str:
    """The output of `kinfolk check` without pytest; it runs before pytest is installed."""
    plain.pip("install", *OFFLINE, *sources.values())
    return run(plain, "kinfolk", "check", "qwen3", code=2).stderr


@pytest.fixture(scope="module")
def others(plain, said_without_tools, wheels, constraints):
    """The same with the extra `testing`, as its message asked for."""
    plain.pip("install", "-c", constraints, f"{wheels['bundle']}[testing]")
    return plain


def test_without_the_extra_the_check_says_what_to_install(said_without_tools):
    assert "pip install 'kinfolk[testing]'" in said_without_tools
    assert "Traceback" not in said_without_tools


def test_all_of_them_are_found_and_usable(others):
    listed = json.loads(run(others, "kinfolk", "plugins", "--json").stdout)
    found = {entry["name"]: entry for entry in listed}
    for name, kind, brought in (
        ("qwen3", "families", ["qwen3"]),
        ("policy-demo", "policies", ["lenient"]),
        ("scorer-demo", "policies", ["rare-tokens"]),
        ("pinned-demo", "policies", ["pinned"]),
        ("drafter-demo", "drafters", ["recurrent"]),
        ("op-demo", "op_backends", ["act_and_mul=inplace", "clipped_swiglu=inplace"]),
    ):
        assert found[name]["status"] == "ok", found[name]["reason"]
        assert found[name]["provides"][kind] == brought
    assert "No broken requirements found" in others.pip("check")


@pytest.mark.parametrize("family", ["qwen3", *FAMILIES])
def test_every_family_passes_the_kit_from_installed_wheels(others, family):
    report = json.loads(run(others, "kinfolk", "check", family, "--json").stdout)
    assert report["ok"]
    statuses = [check["status"] for check in report["checks"]]
    assert statuses.count("passed") > 50
    left_out = [each for each in report["checks"] if each["status"] == "not applicable"]
    assert len({each["check"].partition("[")[0] for each in left_out}) < 12


def test_the_drafter_passes_the_kit_from_installed_wheels(others):
    report = json.loads(run(others, "kinfolk", "check", "recurrent", "--json").stdout)
    assert report["ok"]
    statuses = [check["status"] for check in report["checks"]]
    assert statuses.count("passed") > 20
    assert statuses.count("not applicable") < 4


def test_the_scorer_passes_the_kit_from_installed_wheels(others):
    report = json.loads(run(others, "kinfolk", "check", "rare-tokens", "--json").stdout)
    assert report["ok"]
    assert {check["status"] for check in report["checks"]} == {"passed", "not applicable"}


@pytest.mark.parametrize("policy", ["pinned", "lenient"])
def test_other_policies_pass_the_kit_from_installed_wheels(others, policy):
    report = json.loads(run(others, "kinfolk", "check", policy, "--json").stdout)
    assert report["ok"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_tests_of_each_example_pass(others, sources, example):
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", sources[example] / "tests")
    assert " passed" in run(others, others.python, *words).stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_is_typed_against_the_wheel(others, sources, example):
    (others.work / "mypy.ini").write_text(
        "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n"
        "[mypy-transformers.*]\nignore_missing_imports = true\nfollow_imports = skip\n"
    )
    package = example.replace("-", "_")
    run(
        others,
        *(sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini"),
        *("--python-executable", others.python, "--cache-dir", others.path.parent / "mypy"),
        sources[example] / package,
    )


def test_the_family_is_less_than_two_hundred_lines(repo):
    files = (repo / "examples" / "kinfolk-qwen3" / "kinfolk_qwen3").glob("*.py")
    assert sum(path.read_text().count("\n") for path in files) < 200


def test_the_op_is_chosen_by_option_shown_by_doctor_and_refuses_with_a_reason(others):
    words = ("kinfolk", "doctor", "--json", "--device", "cpu", "--op", "act_and_mul=inplace")
    checks = {check["name"]: check for check in json.loads(run(others, *words).stdout)}
    assert checks["act_and_mul"]["detail"].startswith("inplace")
    usual = json.loads(run(others, *words[:-2]).stdout)
    (unasked,) = (check["detail"] for check in usual if check["name"] == "act_and_mul")
    assert "inplace not tried" in unasked
    refused = run(others, *words, "--dtype", "bf16", code=1).stdout
    assert "inplace: needs float32, not torch.bfloat16" in refused


def test_the_policy_is_switched_on_by_name_and_answers_its_hook(others):
    prompt = "for a in b:\n    print(a)\n" * 4
    words = ("kinfolk", "run", "--max-tokens", "8", "--draft", "ngram", "--policy", "lenient")
    traced = ("env", "KINFOLK_TRACE_PLUGINS=1", "KINFOLK_LOG_LEVEL=info")
    done = run(others, *traced, *words, prompt)
    assert "verify: policy 'lenient' of plugin 'policy-demo'" in done.stderr
    assert done.stdout.strip()
    run(others, *words[:-1], "lenien", prompt, code=2)


def reader(others, bundle):
    """Runs every command of a page as it stands, with the wheel that would be on the index."""

    def play(command, folder):
        if command.startswith("pip "):
            return 0, pip(others, folder, shlex.split(command)[1:], bundle)
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "KINFOLK"))}
        variables["PATH"] = f"{others.python.parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=variables | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.returncode, done.stdout + done.stderr

    return play


def test_the_tutorial_works_with_pip(others, repo, wheels, tmp_path):
    tutorial = runpy.run_path(str(repo / "docs" / "tutorial.py"))
    page = (repo / "docs" / "tutorial.md").read_text()
    tutorial["play"](page, tmp_path, reader(others, wheels["bundle"]))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist()}
    assert {"family.py", "model.py", "py.typed", "entry_points.txt"} <= names
    assert "reference.py" not in names
    # The built wheel works without the sources.
    others.pip("uninstall", "-y", "kinfolk-granite")
    others.pip("install", "--no-index", wheel)
    run(others, "kinfolk", "run", "-m", tmp_path / "granite.gguf", "--max-tokens", "4", "Hello")


def test_the_drafters_tutorial_works_with_pip(others, repo, wheels, tmp_path):
    """The plugin that the page writes takes the place of the example's."""
    others.pip("uninstall", "-y", "kinfolk-drafter-demo")
    tutorial = runpy.run_path(str(repo / "docs" / "tutorial.py"))
    page = (repo / "docs" / "drafter.md").read_text()
    tutorial["play"](page, tmp_path, reader(others, wheels["bundle"]))


def pip(environment, folder, words, bundle) -> str:
    """The tests' pip on the environment, which must find all it needs there already."""
    if words == ["install", "kinfolk[testing]"]:
        return environment.pip("install", "--no-index", f"{bundle}[testing]")
    # Relative names belong to the reader's folder.
    absolute = [f"{folder / word}" if word.startswith("./") or word == "dist" else word
                for word in words]  # fmt: skip
    return environment.pip(absolute[0], *OFFLINE, *absolute[1:])
