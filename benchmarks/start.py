"""The time to the first token of a new process, and whether a 27B fits a 24 GB card.

    python benchmarks/start.py [--shape NAME] [--layers N] [--json FILE] [--device DEVICE]

Each figure is from one process of the public command on a synthetic file. `kinfolk run` generates
one token, first with an empty kernel cache, then with a full one; timed are the whole command,
loading with imports, and the rest up to the token. `kinfolk bench` runs a prompt of 40K tokens with
48K of q8_0 keys and values, and with the device's memory capped at 24 GB. The file is in the page
cache; reading it once is timed, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from model_files import model_file, outline_of

CAPPED = ("--memory", "24", "--context", "49152", "--kv-codec", "q8_0", "--slots", "1")
BLOCK = 64 << 20

say = sys.stdout.write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3.5-27b")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than released")
    parser.add_argument("--prompt", type=int, default=40960, help="tokens of the capped run")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, Any] = {"shape": options.shape}

    def put(name: str, value: Any) -> None:
        figures[name] = value
        say(f"{name}: {json.dumps(value)}\n")
        sys.stdout.flush()
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n")

    plan = outline_of(options.shape, options.layers)
    with model_file(plan) as path, tempfile.TemporaryDirectory() as folder:
        device = ("--device", options.device)
        put("read_seconds", round(read_seconds(path), 2))
        # Imports are most of a command's work before it opens a file.
        modules = [sys.executable, "-c", "import kinfolk.engine.runtime"]
        started = time.perf_counter()
        subprocess.run(modules, check=True)
        put("import_seconds", round(time.perf_counter() - started, 2))
        first = ("run", "-m", str(path), "--raw", "-n", "1", "--json", *device, "Once upon a time")
        environment = {**os.environ, "TRITON_CACHE_DIR": f"{folder}/kernels"}
        for name in ("cold", "warm"):
            seconds, answer = timed(first, environment)
            put(f"{name}_start_seconds", round(seconds, 2))
            put(f"{name}_load_seconds", answer["load_seconds"])
            put(f"{name}_first_token_seconds", answer["first_token_seconds"])
        put("capped_plan", timed(("plan", str(path), "--json", *CAPPED, *device), environment)[1])
        work = ("--prompt", str(options.prompt), "--generate", "64", "--repeats", "1", "--json")
        capped = ("bench", "-m", str(path), *CAPPED, *work, *device)
        answer = timed(capped, environment)[1]
        kept = ("workload", "prompt_tokens_per_second", "generate_tokens_per_second")
        put("capped_bench", {key: answer[key] for key in kept})


def read_seconds(path: Path) -> float:
    """Seconds to read a file once, into a buffer that is reused."""
    buffer = memoryview(bytearray(BLOCK))
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - started


def timed(arguments: tuple[str, ...], environment: dict[str, str]) -> tuple[float, dict[str, Any]]:
    """Seconds from the start of a command to its end, and its JSON output."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "kinfolk", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"kinfolk {arguments[0]} failed: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return seconds, answer


if __name__ == "__main__":
    main()
