"""The example of a policy that scores chunks, found as if it had been installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

NAME = "kinfolk-scorer-demo"


@pytest.fixture(scope="module")
def command(repo, tmp_path_factory):
    """``command(*words)``: kinfolk with the example beside it."""
    site = tmp_path_factory.mktemp("site")
    package = NAME.replace("-", "_")
    shutil.copytree(repo / "examples" / NAME / package, site / package)
    info = site / f"{package}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {NAME}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[kinfolk]\nscorer-demo = {package}.plugin\n")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "KINFOLK_DEVICE": "cpu"}
    del environment["KINFOLK_PLUGINS"]  # packages on the path count
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    )

    def run(*words, **more):
        return subprocess.run(
            [sys.executable, "-m", "kinfolk", *words],
            cwd=site,
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_the_example_passes_the_kit(command):
    done = command("check", "rare-tokens", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["policy"] == "rare-tokens"
    found = {check["check"]: check["status"] for check in report["checks"]}
    of_others = {name for name, status in found.items() if status == "not applicable"}
    assert {name.partition("[")[0] for name in of_others} == {
        "test_drafted_requests_end_well",
        "test_experts_are_placed_in_any_budget",
        "test_answers_do_not_depend_on_its_bays",
        "test_swaps_change_no_token",
    }
    assert {found[name] for name in found.keys() - of_others} == {"passed"}


def test_it_chooses_the_chunks_of_a_long_prompt(command):
    prompt = "\n".join(f"value_{number} = {number * 7919 % 1000}" for number in range(110))
    paging = ("--kvflash", "640", "--kvflash-burst", "2", "--draft", "off")
    words = ("run", "--json", "--max-tokens", "4", *paging, "--policy", "rare-tokens", prompt)
    traced = {"KINFOLK_TRACE_PLUGINS": "1", "KINFOLK_LOG_LEVEL": "info"}
    done = command(*words, **traced)
    assert done.returncode == 0, done.stderr
    who = "policy 'rare-tokens' of plugin 'scorer-demo'"
    assert f"chunks are chosen by {who}" in done.stderr
    assert f"score_chunks: {who}" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["exact"] is False


def test_the_name_of_a_policy_is_told_where_none_of_that_name_can_be_checked(command):
    done = command("check", "rare-token")
    assert done.returncode == 2
    assert "policies: rare-tokens" in done.stderr
