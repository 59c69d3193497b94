"""Runs launches of kernels in CUDA C++ on the CPU, see ``cuda_on_cpu.h``.

The section of a source that is headed "instructions" is replaced by functions of the same names,
and the rest is compiled as it is by the host's compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from kinfolk_kernels.cuda_source import CudaLaunch, CudaSource

HEADER = Path(__file__).with_suffix(".h")
COMPILER = shutil.which(os.environ.get("CXX", "g++"))

ENTRY = """
static Matrix matrices[4];
static Work work_of_all;
#if TENSOR_MAPS
static TensorMap map_of_x;
#define MAP , map_of_x
#else
#define MAP
#endif
static void call() {{
  {kernel}(matrices[0], matrices[1], matrices[2], matrices[3], work_of_all MAP);
}}
extern "C" int run(const void *m, const void *work, const void *map, int grid, int threads,
                   unsigned seed) {{
  memcpy(matrices, m, sizeof matrices), memcpy(&work_of_all, work, sizeof work_of_all);
#if TENSOR_MAPS
  memcpy(&map_of_x, map, sizeof map_of_x);
#endif
  return run_programs(grid, threads, call, seed);
}}
"""


ENTRY_OF_GROUPS = """
static Groups groups;
static void call() {{ {kernel}(groups); }}
extern "C" int run(const void *g, int grid, int threads, unsigned seed) {{
  memcpy(&groups, g, sizeof groups);
  return run_programs(grid, threads, call, seed);
}}
"""


def run_on_cpu(launch: CudaLaunch, seed: int = 1) -> None:
    """Run ``launch``, whose tensors are on the CPU. It raises if the kernel does not end."""
    library = ctypes.CDLL(str(_built(launch.source, ENTRY)))
    matrices, (work, *maps) = launch.arguments[:4], launch.arguments[4:]
    array = (type(matrices[0]) * 4)(*matrices)
    map_of_x = ctypes.byref(maps[0]) if maps else None
    ended = library.run(array, ctypes.byref(work), map_of_x, launch.grid, launch.threads, seed)
    assert ended, "a thread waits for what never comes"


def run_groups_on_cpu(launch: CudaLaunch, seed: int = 1) -> None:
    """The same for a launch of ``mma_groups``."""
    library = ctypes.CDLL(str(_built(launch.source, ENTRY_OF_GROUPS)))
    (groups,) = launch.arguments
    ended = library.run(ctypes.byref(groups), launch.grid, launch.threads, seed)
    assert ended, "a thread waits for what never comes"


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="cuda-on-cpu-"))


@cache
def _built(source: CudaSource, entry: str) -> Path:
    if COMPILER is None:
        raise RuntimeError("kernels in CUDA C++ run on the CPU with g++, or with what CXX names")
    text = re.sub(r"// -- instructions -.*?(?=\n// -- )", "", source.text(), flags=re.DOTALL)
    text = re.sub(r'asm volatile\("fence[^;"]*;" ::: "memory"\);', "", text)
    text = f'#include "{HEADER}"\n' + text + entry.format(kernel=source.kernel)
    name = hashlib.sha256(repr((text, source.defines)).encode()).hexdigest()[:16]
    file = _folder() / f"{name}.cpp"
    file.write_text(text)
    out = file.with_suffix(".so")
    macros = [f"-D{key}={value}" for key, value in source.defines]
    aligned = ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    options = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", *aligned, *macros]
    done = subprocess.run(
        [COMPILER, *options, file, "-o", out], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{source.path.name} does not compile for the CPU:\n{done.stderr}")
    return out
