"""The synthetic model files that benchmarks run.

A file is written to memory if there is room, and removed after the benchmark. Writing takes a
quarter of a minute for 20 GB; with ``BENCHMARK_FILES=FOLDER`` in the environment it is written
there once, and stays for the benchmarks that follow.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shapes import MORE

from kinfolk.cli.main import BUILT_IN
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.synth.plan import SynthPlan, find_shape, plan_synthetic
from kinfolk.synth.write import write_synthetic

FOLDER = "BENCHMARK_FILES"
"""The environment variable that names the folder in which files stay. It is no setting of kinfolk,
which would warn of its own prefix."""

ROOM = 64 << 30
"""Bytes of free memory that are required for writing a model's file to memory."""


def outline_of(name: str, layers: int = 0) -> SynthPlan:
    """The synthetic file of a shape: those of the installed families, and of ``shapes``;
    ``layers``: fewer than released, 0 = all."""
    for shape in MORE:
        if shape.name == name:
            return plan_synthetic(shape, layers=layers)
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    families = [provided.value for provided in registry.families.values()]
    return plan_synthetic(find_shape(name, families), layers=layers)


@contextmanager
def model_file(plan: SynthPlan) -> Iterator[Path]:
    """Context in which the file of ``plan`` exists."""
    if FOLDER not in os.environ:
        with scratch() as folder:
            path = Path(folder) / "model.gguf"
            write_synthetic(plan, path)
            yield path
        return
    kept = Path(os.environ[FOLDER])
    kept.mkdir(parents=True, exist_ok=True)
    path = kept / f"{plan.shape.name}-{plan.mix}-{plan.layers}.gguf"
    if not path.exists():
        # Under a name of its own: another benchmark may be writing the same file.
        part = path.with_suffix(f".{os.getpid()}")
        write_synthetic(plan, part)
        part.replace(path)
    yield path


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for a model: in memory, where the page cache would hold it anyway, or on
    disk."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > ROOM
    return tempfile.TemporaryDirectory(dir=memory if roomy else None)
