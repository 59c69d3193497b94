"""Every way to install kinfolk, in environments made for it.

`offline` installs resolve their dependencies without any index: nothing of ours may ask one for a
name that it does not own.
"""

from __future__ import annotations

import json
import zipfile

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(480)]

OFFLINE = ("--no-index", "--no-build-isolation")
FAMILIES = ("gemma4", "laguna", "qwen35", "qwen35moe")


def active(report: str) -> list[str]:
    """Names of the plugins that `kinfolk plugins --json` calls usable, but the core's own."""
    entries = [entry for entry in json.loads(report) if entry["name"] != "kinfolk"]
    return sorted(entry["name"] for entry in entries if entry["status"] == "ok")


def contents(wheel) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


# -- the bundle -----------------------------------------------------------------------------------


def test_the_bundle_installs_from_its_declared_dependencies(fresh):
    assert "No broken requirements found" in fresh.check
    assert active(fresh.plugins) == list(FAMILIES)
    assert "Usage: kinfolk" in fresh.help


def test_the_bundle_answers_where_it_was_just_installed(fresh):
    assert fresh.answer.returncode == 0, fresh.answer.stderr
    assert fresh.answer.stdout.strip()


def test_the_constraint_keeps_cuda_out(fresh):
    assert fresh.distributions["torch"].endswith("+cpu")
    heavy = [name for name in fresh.distributions if name.startswith(("nvidia", "cuda"))]
    assert heavy == []


def test_uninstalling_the_bundle_leaves_nothing_behind(fresh):
    assert fresh.left_behind == []


def test_the_bundle_holds_exactly_what_its_members_hold(wheels):
    members = [contents(path) for name, path in wheels.items() if name != "bundle"]
    assert contents(wheels["bundle"]) == set().union(*members)
    assert sum(len(files) for files in members) == len(contents(wheels["bundle"]))


def test_the_core_carries_the_files_of_the_live_page(wheels, repo):
    files = list((repo / "core/kinfolk/server/page").iterdir())
    assert len(files) > 3
    assert {f"kinfolk/server/page/{path.name}" for path in files} <= contents(wheels["core"])


def test_no_wheel_carries_tests_or_build_leftovers(wheels):
    for wheel in wheels.values():
        names = contents(wheel)
        # The files that `new-family` writes have tests of their own.
        own = [name for name in names if not name.endswith(".tmpl")]
        assert [n for n in own if "/tests/" in n or n.endswith((".pyc", "pyproject.toml"))] == []
        assert {name.split("/")[0].removeprefix("kinfolk")[:1] for name in names} <= {"", "_"}


def test_an_editable_bundle_runs_the_working_tree(borrowing, repo, consumer):
    environment = borrowing("editable")
    environment.pip("install", *OFFLINE, "-e", repo)
    assert active(environment.kinfolk("plugins", "--json")) == list(FAMILIES)
    where = environment.execute("import kinfolk; print(kinfolk.__file__)").stdout.strip()
    assert where == str(repo / "core/kinfolk/__init__.py")
    assert environment.type_check(consumer).returncode == 0
    # A plugin of ours beside it is found twice and loaded once.
    environment.pip("install", *OFFLINE, "-e", repo / "plugins/qwen35")
    assert active(environment.kinfolk("plugins", "--json")) == list(FAMILIES)
    assert "No broken requirements found" in environment.pip("check")


# -- the members ----------------------------------------------------------------------------------


def test_kernels_core_and_one_plugin_make_a_whole(borrowing, repo, consumer):
    environment = borrowing("split")
    folders = [repo / "kernels", repo / "core", repo / "plugins/qwen35"]
    environment.pip("install", *OFFLINE, *folders)
    assert active(environment.kinfolk("plugins", "--json")) == ["qwen35"]
    assert environment.answer().returncode == 0
    assert environment.type_check(consumer).returncode == 0
    assert "No broken requirements found" in environment.pip("check")


def test_the_core_installs_alone(borrowing, repo, cases):
    environment = borrowing("core")
    environment.pip("install", *OFFLINE, repo / "core")
    assert active(environment.kinfolk("plugins", "--json")) == []
    assert "general.architecture" in environment.kinfolk("inspect", cases / "qwen35.gguf")
    assert environment.execute("import kinfolk_kernels", check=False).returncode == 1
    assert "No broken requirements found" in environment.pip("check")


def test_the_kernels_install_alone(borrowing, repo):
    environment = borrowing("kernels")
    environment.pip("install", *OFFLINE, repo / "kernels")
    code = (
        "import torch\n"
        "from kinfolk_kernels.rms_norm.op import normed\n"
        "print(normed(torch.ones(1, 4), torch.ones(4), 0.0, torch.float32).tolist())\n"
    )
    assert environment.execute(code).stdout.strip() == "[[1.0, 1.0, 1.0, 1.0]]"
    assert environment.execute("import kinfolk", check=False).returncode == 1
    assert "No broken requirements found" in environment.pip("check")


def test_each_plugin_installs_beside_a_core(borrowing, wheels):
    environment = borrowing("plugins")
    environment.pip("install", "--no-index", wheels["core"])
    for family in FAMILIES:
        environment.pip("install", "--no-index", wheels[family])
        assert active(environment.kinfolk("plugins", "--json")) == [family]
        assert "No broken requirements found" in environment.pip("check")
        environment.pip("uninstall", "-y", f"kinfolk-{family}")
    assert active(environment.kinfolk("plugins", "--json")) == []


def test_a_plugin_does_not_install_without_a_core(borrowing, wheels):
    environment = borrowing("lonely")
    with pytest.raises(pytest.fail.Exception, match="No matching distribution found for kinfolk"):
        environment.pip("install", "--no-index", wheels["qwen35"])


# -- types ----------------------------------------------------------------------------------------


def test_a_consumer_of_the_wheel_type_checks(fresh):
    assert fresh.consumer.returncode == 0, fresh.consumer.stdout


def test_the_type_checker_sees_our_types_and_not_any(borrowing, wheels, consumer):
    environment = borrowing("types")
    environment.pip("install", "--no-index", wheels["core"])
    result = environment.type_check(consumer.replace("heads=2", "heads='two'"))
    assert result.returncode == 1
    assert 'incompatible type "str"; expected "int"' in result.stdout
