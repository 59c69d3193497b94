"""Imports that must stay quick: the package, the command line's help, discovery, the scheduler.

Each check runs in a process of its own and looks at what that process has imported.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "transformers", "tokenizers", "gguf", "fastapi", "uvicorn")

PROBE = """
import json, sys
{body}
print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


@pytest.fixture
def imported(tmp_path):
    """Run a body in a fresh interpreter outside of the repository; return its top-level modules."""

    def run(body: str) -> set[str]:
        result = subprocess.run(
            [sys.executable, "-c", PROBE.format(body=body)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == 0, result.stderr
        return set(json.loads(result.stdout.splitlines()[-1]))

    return run


@pytest.mark.parametrize(
    "body",
    [
        "import kinfolk",
        "import kinfolk.hookspecs, kinfolk.descriptors, kinfolk.plans, kinfolk.model_api",
        "import kinfolk.settings, kinfolk.hooks, kinfolk.loader, kinfolk.registry",
        "import kinfolk.cli.main",
    ],
    ids=["package", "contract", "discovery modules", "command line"],
)
def test_importing_is_light(imported, body):
    assert imported(body).isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["plugins"]])
def test_the_command_line_answers_without_torch(imported, arguments):
    body = f"""
import contextlib, io
from kinfolk.cli.main import main
sys.argv = ["kinfolk", *{arguments!r}]
with contextlib.redirect_stdout(io.StringIO()) as out:
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
assert out.getvalue().strip()
"""
    assert imported(body).isdisjoint(HEAVY)


def test_every_plugin_module_is_light(imported, families):
    body = "\n".join(f"import kinfolk_{name}.plugin" for name in families)
    assert imported(body).isdisjoint(HEAVY)


def test_the_scheduler_runs_without_torch(imported, core):
    modules = [s.module for s in core if s.module.startswith("kinfolk.sched")]
    assert modules
    body = "\n".join(f"import {module}" for module in modules)
    assert imported(body).isdisjoint(HEAVY)
