"""`kinfolk check` and the pytest plugin, as their users meet them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinfolk.errors import SettingsError
from kinfolk.scaffold.write import NewFamily, write_family
from kinfolk.testing.run import reason_of, run_checks


def kinfolk(*words, cwd, path=None, **more):
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | more
    if path is not None:
        del environment["KINFOLK_PLUGINS"]  # packages on the path count
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.fixture
def installed(tmp_path):
    """``installed(name)``: a new plugin, found as if it had been installed."""

    def make(name):
        family = NewFamily(name)
        site = tmp_path / "site"
        write_family(family, site)
        info = site / f"{family.module}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {family.distribution}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[kinfolk]\n{name} = {family.module}.plugin\n")
        return site

    return make


@pytest.mark.parametrize("name", ["olive-2", "granite"])
def test_a_new_family_is_green_before_its_authors_first_edit(installed, tmp_path, name):
    """Files of the second family are known to hold the rows of heads in another order."""
    site = installed(name)
    done = kinfolk("kinfolk", "check", name, "--json", cwd=tmp_path, path=site)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    by_status = {}
    for check in report["checks"]:
        by_status.setdefault(check["status"], []).append(check["check"])
    assert len(by_status["passed"]) > 50
    assert sorted(by_status["not applicable"]) == [
        "test_answers_do_not_depend_on_where_experts_are",
        "test_bays_of_experts_change_nothing",
        "test_chunks_leave_behind_a_window",
        f"test_converted_checkpoints_give_their_logits[{name}-tied]",
        f"test_converted_checkpoints_give_their_logits[{name}-tiny]",
        "test_equal_queries_have_equal_scores",
        *(f"test_experts_may_be_anywhere[{bays}]" for bays in ("0", "K", "random")),
        "test_long_requests_lose_no_round",
        *(["test_neighbouring_rows_of_heads_turn_together"] if name == "olive-2" else []),
        "test_queries_are_left_alone",
        "test_scores_are_one_finite_number_a_chunk",
        "test_windows_are_crossed_at_any_length",
    ]
    assert set(by_status) == {"passed", "not applicable"}
    both = {f"test_logits_equal_the_reference[{name}-{model}]" for model in ("tiny", "tied")}
    assert both <= set(by_status["passed"])


def test_the_plugins_own_test_module_runs_the_same_checks(installed, tmp_path):
    site = installed("olive")
    words = ("pytest", "-q", "-k", "usable or windows", str(site / "tests"))
    done = kinfolk(*words, cwd=tmp_path, path=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    # Tests that do not apply are reported even with -q.
    assert "olive: test_windows_are_crossed_at_any_length: the state plan has no window" in (
        done.stdout
    )


def test_a_failure_is_told_with_its_reason_and_the_exit_code(installed, tmp_path):
    site = installed("olive")
    reference = site / "kinfolk_olive" / "reference.py"
    reference.write_text(reference.read_text().replace("head_dim**-0.5", "head_dim**-0.4"))
    words = ("kinfolk", "check", "olive", "-k", "reference and tied")
    done = kinfolk(*words, cwd=tmp_path, path=site)
    assert done.returncode == 1
    assert "FAILED  logits equal the reference[olive-tied]: 149 of 150 rows differ" in done.stdout
    assert "0 passed, 1 failed, 0 not applicable" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "assert_same" in kinfolk(*words, "--trace", cwd=tmp_path, path=site).stdout


def test_nothing_is_left_behind_in_the_folder_of_the_user(installed, tmp_path):
    """Property tests save their examples; the check must not save them in the user's folder."""
    site = installed("olive")
    here = tmp_path / "here"
    here.mkdir()
    words = ("kinfolk", "check", "olive", "-k", "slices or trees")
    done = kinfolk(*words, cwd=here, path=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("ValueError: one line", "ValueError: one line"),
        ("AssertionError: values differ\nthe worst by 3", "values differ … the worst by 3"),
        ("ValueError: a problem:\n\n  in a place\n  and why\n", "ValueError: a problem: … and why"),
        (
            "ValidationError: 1 validation error for Config\nwidth\n  Field required\n"
            "    For further information visit https://errors.pydantic.dev/2/v/missing",
            "ValidationError: 1 validation error for Config … Field required",
        ),
        (
            "AssertionError: assert [1] == [2]\n  \n  At index 0 diff: 1 != 2\n"
            "  Use -v to get more diff",
            "assert [1] == [2] … At index 0 diff: 1 != 2",
        ),
        ("", "failed"),
    ],
)
def test_a_failure_is_told_by_its_first_line_and_its_last(message, told):
    """The last one says what is wrong."""
    crash = SimpleNamespace(message=message)
    assert reason_of(SimpleNamespace(longrepr=SimpleNamespace(reprcrash=crash))) == told


def test_a_family_without_a_tiny_model_is_never_green(installed, tmp_path):
    site = installed("olive")
    family = site / "kinfolk_olive" / "family.py"
    stated = '    tiny_model = "kinfolk_olive.tiny:tiny"\n'
    assert stated in family.read_text()
    family.write_text(family.read_text().replace(stated, ""))
    done = kinfolk("kinfolk", "check", "olive", cwd=tmp_path, path=site)
    assert done.returncode == 1
    assert "FAILED  tiny model is usable: " in done.stdout
    assert "tiny() returned None" in done.stdout
    assert "-       decoding equals prefill: the tiny model cannot be used" in done.stdout


def test_a_plugin_that_cannot_be_imported_is_one_line(installed, tmp_path):
    site = installed("olive")
    (site / "kinfolk_olive" / "plugin.py").write_text("import nothing_like_it\n")
    done = kinfolk("kinfolk", "check", "olive", cwd=tmp_path, path=site)
    assert done.returncode == 2
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: no family 'olive' is installed")
    assert "No module named 'nothing_like_it'" in error


def test_a_family_that_is_not_there_and_a_filter_that_matches_nothing(tmp_path):
    done = kinfolk("kinfolk", "check", "nobody", cwd=tmp_path)
    assert done.returncode == 2
    assert "no family 'nobody' is installed; installed: " in done.stderr
    done = kinfolk("kinfolk", "check", "qwen35", "-k", "nothing_like_it", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: no check matches 'nothing_like_it'"


def test_a_check_that_does_not_apply_is_listed_though_it_is_the_only_one(tmp_path):
    done = kinfolk("kinfolk", "check", "qwen35", "-k", "neighbouring", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0 passed, 0 failed, 1 not applicable" in done.stdout


def test_ctrl_c_ends_the_checks(monkeypatch):
    monkeypatch.setattr(pytest, "main", lambda *_, **__: pytest.ExitCode.INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        run_checks("qwen35")


def test_without_pytest_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"need pytest and hypothesis.*kinfolk\[testing\]"):
        run_checks("qwen35")


def test_the_settings_of_a_folder_with_other_tests_do_not_count(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not yours')\n")
    done = kinfolk("kinfolk", "check", "qwen35", "-k", "descriptor", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_checks_run_in_one_process_whatever_pytest_is_told_to_do(tmp_path):
    done = kinfolk(
        *("kinfolk", "check", "qwen35", "-k", "descriptor"), cwd=tmp_path, PYTEST_ADDOPTS="-q -n 2"
    )
    assert done.returncode == 0, done.stderr


def test_the_pytest_plugin_is_light(tmp_path):
    """Users of pytest who have kinfolk installed must not wait for its imports."""
    (tmp_path / "test_modules.py").write_text(
        "import sys\n\n\ndef test_nothing_heavy_is_imported():\n"
        "    assert not {'torch', 'numpy', 'pydantic', 'kinfolk.registry'} & set(sys.modules)\n"
    )
    words = ("pytest", "-q", "-p", "kinfolk", "-p", "no:cacheprovider", "-p", "no:randomly")
    isolated = ("--rootdir", str(tmp_path), "-c", "/dev/null")
    done = kinfolk(*words, *isolated, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_workers_of_xdist_tell_what_has_no_meaning(tmp_path):
    module = Path(tmp_path, "test_family.py")
    module.write_text(
        "from kinfolk.testing import FamilyConformance\n\n\n"
        "class TestQwen35(FamilyConformance):\n    family = 'qwen35'\n"
    )
    words = ("pytest", "-q", "-n", "2", "-k", "windows or descriptor", "-c", "/dev/null")
    plugins = ("--disable-plugin-autoload", "-p", "xdist", "-p", "kinfolk.testing.pytest_plugin")
    done = kinfolk(*words, *plugins, "--rootdir", str(tmp_path), str(module), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("qwen35: test_windows_are_crossed_at_any_length: the state plan") == 1
