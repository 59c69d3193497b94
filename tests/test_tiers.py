"""The rules of the test tiers: pytest runs on small files under our own conftest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ONE_OF_EACH = """
import pytest
def test_plain(): pass
@pytest.mark.interpreter
def test_interpreted(): pass
@pytest.mark.gpu
def test_device(): pass
"""


@pytest.fixture
def run_pytest(tmp_path: Path, repo: Path):
    """Run our configuration and conftest over one file, in one process of its own unless ``-n``
    says otherwise."""
    (tmp_path / "pyproject.toml").write_text((repo / "pyproject.toml").read_text())
    (tmp_path / "tests" / "support").mkdir(parents=True)
    for name in ("conftest.py", "support/quick_interpreter.py"):
        (tmp_path / "tests" / name).write_text((repo / "tests" / name).read_text())

    def run(source: str, *arguments: str, interpret: str = "") -> subprocess.CompletedProcess[str]:
        (tmp_path / "tests" / "test_it.py").write_text(source)
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TRITON"))
        }
        if interpret:
            environment["TRITON_INTERPRET"] = interpret
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-n", "0", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_plain_pytest_runs_the_unmarked_tests_and_nothing_else(run_pytest):
    result = run_pytest(ONE_OF_EACH)
    assert result.returncode == 0, result.stdout
    assert "test_plain PASSED" in result.stdout
    assert "1 passed, 2 deselected" in result.stdout


def test_the_interpreter_tier_runs_in_an_interpreting_process(run_pytest):
    result = run_pytest(ONE_OF_EACH, "-m", "interpreter", interpret="1")
    assert result.returncode == 0, result.stdout
    assert "test_interpreted PASSED" in result.stdout
    assert "1 passed, 2 deselected" in result.stdout


def test_the_interpreter_tier_refuses_a_process_that_does_not_interpret(run_pytest):
    result = run_pytest(ONE_OF_EACH, "-m", "interpreter")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "needs TRITON_INTERPRET=1" in result.stderr + result.stdout
    assert "PASSED" not in result.stdout


def test_other_tiers_refuse_an_interpreting_process(run_pytest):
    result = run_pytest(ONE_OF_EACH, interpret="1")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "other tiers are selected: cpu" in result.stderr + result.stdout


def test_setting_the_variable_while_collecting_is_refused(run_pytest):
    source = "import os\nos.environ['TRITON_INTERPRET'] = '1'\n" + ONE_OF_EACH
    result = run_pytest(source, "-m", "interpreter and not gpu")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "changed inside the process" in result.stderr + result.stdout


def test_a_worker_of_xdist_fails_what_it_cannot_run(run_pytest):
    result = run_pytest(ONE_OF_EACH, "-m", "interpreter and not gpu", "-n", "1")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert "needs TRITON_INTERPRET=1" in result.stdout


def test_a_tier_that_cannot_run_is_refused_before_workers_start(run_pytest):
    result = run_pytest(ONE_OF_EACH, "-m", "interpreter", "-n", "1")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "needs TRITON_INTERPRET=1" in result.stderr + result.stdout
    assert "worker" not in result.stdout


def test_tests_run_in_a_process_a_core_and_one_file_in_a_single_one(run_pytest):
    source = (
        "import os\n"
        "def test_worker():\n"
        "    assert 0, f\"workers: {os.environ.get('PYTEST_XDIST_WORKER_COUNT')}\"\n"
    )
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    assert f"workers: {min(cores, 8)}" in run_pytest(source, "-n", "auto").stdout
    assert "workers: None" in run_pytest(source, "-n", "auto", "tests/test_it.py").stdout


def test_programs_that_tests_start_compute_in_one_thread_each(run_pytest, monkeypatch):
    source = "import os\ndef test_threads(): assert os.environ['OMP_NUM_THREADS'] == '1'\n"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "1 passed" in run_pytest(source).stdout


def test_a_test_in_two_tiers_is_an_error(run_pytest):
    source = "import pytest\n@pytest.mark.gpu\n@pytest.mark.cpu\ndef test_both(): pass\n"
    result = run_pytest(source)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "several tiers: cpu, gpu" in result.stderr + result.stdout


def test_a_gpu_tier_without_a_device_is_an_error_and_no_skip(run_pytest):
    hide = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
    result = run_pytest(hide + ONE_OF_EACH, "-m", "gpu")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "sees no CUDA device" in result.stderr + result.stdout
    assert "skipped" not in result.stdout


def test_a_browser_tier_without_a_browser_is_an_error_and_no_skip(run_pytest, monkeypatch):
    source = ONE_OF_EACH + "@pytest.mark.browser\ndef test_page(): pass\n"
    monkeypatch.setenv("PATH", "")
    result = run_pytest(source, "-m", "browser")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "none is on PATH: chromium" in result.stderr + result.stdout
    assert "skipped" not in result.stdout


def test_examples_are_the_same_each_time_under_ci(run_pytest, monkeypatch):
    source = (
        "import hypothesis\n"
        "def test_profile():\n"
        "    s = hypothesis.settings()\n"
        "    print('profile', s.max_examples, s.derandomize, s.deadline)\n"
    )
    monkeypatch.setenv("CI", "true")
    assert "profile 100 True None" in run_pytest(source, "-s").stdout
    monkeypatch.delenv("CI")
    assert "profile 25 False None" in run_pytest(source, "-s").stdout


def test_every_test_in_the_folder_for_gpus_is_in_their_tier(repo):
    modules = sorted((repo / "tests" / "gpu").glob("test_*.py"))
    assert len(modules) > 5
    unmarked = [path.name for path in modules if "\npytestmark = " not in path.read_text()]
    assert unmarked == []
