"""Virtual environments, and the wheels to install in them.

One environment is fresh: created empty, with all dependencies resolved from the declared ones.
kinfolk is then uninstalled from it, and the other environments see its third-party packages, so
that they take only seconds. They resolve dependencies offline: from these packages and from the
wheel folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command away from the repository; its whole output is in the failure's message."""
    # Hide variables that would let the environment see the code that runs these tests.
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST", "COVERAGE", "KINFOLK")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    if check and result.returncode != 0:
        words = " ".join(str(word) for word in command)
        pytest.fail(f"{words}\nrc {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


@dataclass
class Environment:
    """A virtual environment without pip; the pip of the tests installs into it."""

    path: Path
    work: Path = field(init=False)

    def __post_init__(self) -> None:
        venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(self.path)
        self.work = self.path / "work"
        self.work.mkdir()

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def site(self) -> Path:
        (site,) = (self.path / "lib").glob("python3.*/site-packages")
        return site

    def pip(self, *arguments: str | Path) -> str:
        words = (sys.executable, "-m", "pip", "--python", self.python, *arguments)
        return run(*words, cwd=self.work).stdout

    def execute(self, code: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run(self.python, "-c", code, cwd=self.work, check=check)

    def kinfolk(self, *arguments: str | Path) -> str:
        return run(self.path / "bin" / "kinfolk", *arguments, cwd=self.work).stdout

    def answer(self) -> subprocess.CompletedProcess[str]:
        """Run the README's first command, with a short answer."""
        words = ("run", "--max-tokens", "8", "def fibonacci(n):")
        return run(self.path / "bin" / "kinfolk", *words, cwd=self.work, check=False)

    def distributions(self) -> dict[str, str]:
        listed = json.loads(self.pip("list", "--format", "json"))
        return {entry["name"]: entry["version"] for entry in listed}

    def borrow(self, lender: Environment) -> None:
        """Make the packages of another environment importable, after its own."""
        (self.site / "borrowed.pth").write_text(f"{lender.site}\n")

    def type_check(self, source: str) -> subprocess.CompletedProcess[str]:
        """Run mypy on a file that depends on the installed packages."""
        (self.work / "consumer.py").write_text(source)
        # Checking torch's sources would take minutes, and they are not under test.
        (self.work / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
        return run(
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini"),
            *("--python-executable", self.python, "--cache-dir", self.path.parent / "mypy"),
            "consumer.py",
            cwd=self.work,
            check=False,
        )


@pytest.fixture(scope="session")
def room() -> Iterator[Path]:
    """A folder for gigabytes, deleted afterwards even if tests fail."""
    with tempfile.TemporaryDirectory(prefix="kinfolk-packaging-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def constraints(repo: Path) -> Path:
    return repo / ".ci" / "constraints.txt"


@pytest.fixture(scope="session")
def wheels(repo: Path, room: Path) -> dict[str, Path]:
    """The wheel of the bundle, built from its own source archive, and one of each member."""
    folders = {"bundle": repo, "core": repo / "core", "kernels": repo / "kernels"}
    folders |= {path.parent.name: path.parent for path in repo.glob("plugins/*/pyproject.toml")}
    built = {}
    for name, folder in folders.items():
        out = room / "wheels" / name
        # Without --wheel, build makes the archive and the wheel from the archive.
        only = () if name == "bundle" else ("--wheel",)
        run(sys.executable, "-m", "build", "-n", *only, "-o", out, folder, cwd=room)
        (built[name],) = out.glob("*.whl")
    return built


@dataclass(frozen=True)
class FreshInstall:
    """Outputs of commands in the fresh environment after `pip install` of the bundle's wheel."""

    environment: Environment
    check: str
    distributions: dict[str, str]
    plugins: str
    help: str
    consumer: subprocess.CompletedProcess[str]
    answer: subprocess.CompletedProcess[str]
    left_behind: list[str]


@pytest.fixture(scope="session")
def fresh(room: Path, constraints: Path, wheels: dict[str, Path], consumer: str) -> FreshInstall:
    """Install the bundle in an empty environment, run commands, and uninstall it again."""
    environment = Environment(room / "fresh")
    environment.pip("install", "-c", constraints, wheels["bundle"])
    seen = {
        "check": environment.pip("check"),
        "distributions": environment.distributions(),
        "plugins": environment.kinfolk("plugins", "--json"),
        "help": environment.kinfolk("--help"),
        "consumer": environment.type_check(consumer),
        "answer": environment.answer(),
    }
    environment.pip("uninstall", "-y", "kinfolk")
    left = sorted(path.name for path in environment.site.glob("kinfolk*"))
    # From here on it lends its packages; building from source needs the build backend.
    environment.pip("install", "hatchling")
    return FreshInstall(environment, left_behind=left, **seen)


@pytest.fixture(scope="session")
def consumer() -> str:
    """The source of a program that depends on kinfolk."""
    return (
        "from kinfolk import __version__, hookimpl\n"
        "from kinfolk.plans import Paged, Section, StatePlan\n"
        "plan = StatePlan((Paged((Section('k', heads=2, dim=64),)),))\n"
        "windows: tuple[int | None, ...] = plan.windows\n"
        "print(__version__, hookimpl, windows)\n"
    )


@pytest.fixture(scope="session")
def borrowing(room: Path, fresh: FreshInstall) -> Callable[[str], Environment]:
    """Create an environment that has the third-party packages but not kinfolk."""

    def make(name: str) -> Environment:
        environment = Environment(room / name)
        environment.borrow(fresh.environment)
        return environment

    return make
