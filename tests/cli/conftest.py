"""Runs the command line on tiny models, in this process and as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kinfolk.cli.main import cli
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, OutputTensor

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def kinfolk() -> Callable[..., Result]:
    """``kinfolk("run", ...)`` runs a command in this process."""

    def run(*arguments: Any, stdin: str | bytes | None = None, **options: Any) -> Result:
        return CliRunner().invoke(cli, [str(a) for a in arguments], input=stdin, **options)

    return run


@pytest.fixture
def program(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``program("run", ...)`` runs the installed program, away from the repository."""

    def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kinfolk", *map(str, arguments)]
        options = {"capture_output": True, "text": True, "timeout": 120, **options}
        return subprocess.run(command, cwd=tmp_path, **options)

    return run


@pytest.fixture(scope="session")
def model(cases: Path) -> Path:
    """A tiny model with random weights and no chat template."""
    return cases / "qwen35.gguf"


@pytest.fixture(scope="session")
def chat_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a chat template."""
    path = tmp_path_factory.mktemp("models") / "chat.gguf"
    return copied(model, path, {"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def damaged(model: Path, tmp_path: Path) -> Callable[[str, Any], Path]:
    """``damaged(key, value)``: the model with one key changed."""
    return lambda key, value: copied(model, tmp_path / "damaged.gguf", {key: value})


def copied(model: Path, path: Path, changes: dict[str, object]) -> Path:
    """The model with some of its keys changed."""
    with GGUFFile.open(model) as file:
        keys = {key: file.metadata.value(key) for key in file.metadata} | changes
        tensors = file.inventory.values()
        layouts = [OutputTensor(t.name, t.shape, t.ggml_type, t.nbytes) for t in tensors]
        with GGUFOutput(path, keys, layouts) as output:
            for tensor in tensors:
                output.write(tensor.name, file.inventory.bytes(tensor.name))
    return path


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """``install(name, source)``: a plugin as an installer leaves it, without pip."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)

    def make(name: str, source: str) -> None:
        monkeypatch.delitem(sys.modules, f"made_{name}", raising=False)
        (site / f"made_{name}.py").write_text("KINFOLK_API = (1, 0)\n" + source)
        monkeypatch.setenv("KINFOLK_PLUGINS", name, prepend=",")
        info = site / f"made_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: made-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[kinfolk]\n{name} = made_{name}\n")

    return make
