"""Loading a mixture of experts that does not fit: seconds, and the most memory it took meanwhile.

    python benchmarks/expert_load.py [--shape NAME] [--layers N] [--file MODEL] [--budget SHARE]…
                                     [--weights FORM] [--device DEVICE] [--json FILE]

Loads a synthetic file once for each budget of experts, each time in a process of its own, after a
load that is not counted: the file is in the page cache then. `all` is an ordinary load, the one
that others are compared with. Bars, less the seconds of mapping and page-locking the homes: 1.5
times the ordinary load; and never more on the device than the plan has for weights, experts and
work space.

On a GPU the device's memory is what torch allocated there at most. On a CPU it is the memory of the
process beside the file, with the homes, which the plan counts too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from model_files import model_file, outline_of

from kinfolk.engine.loading import load_model
from kinfolk.experts import arena
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

BUDGETS = ("all", "75%", "50%", "25%", "0%")
MOST_TIMES = 1.5
LOADED_PARTS = ("weights", "experts", "homes of experts", "work space")
"""The parts of a plan that may be taken while a model is loaded."""

MIB = 2**20

say = sys.stdout.write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3.5-35b-a3b")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than released")
    parser.add_argument("--file", type=Path, help="a model file, instead of a synthetic one")
    parser.add_argument(
        "--budget", action="append", help="of experts; the first is an ordinary one"
    )
    parser.add_argument("--weights", default="auto", help="packed, blocks or dense")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        say(json.dumps(loaded(options.file, options.one, options.weights, options.device)))
        return
    synthetic = model_file(outline_of(options.shape, options.layers))
    with nullcontext(options.file) if options.file else synthetic as path:
        budgets = options.budget or BUDGETS
        found = [in_process(path, budget, options) for budget in (budgets[0], *budgets)][1:]
    for one in found:
        one["times"] = round((one["seconds"] - one["lock_seconds"]) / found[0]["seconds"], 2)
    say(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def in_process(path: Path, budget: str, options: argparse.Namespace) -> dict[str, Any]:
    """A load in a new process."""
    command = [sys.executable, __file__, "--one", budget, "--file", str(path)]
    command += ["--weights", options.weights, "--device", options.device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{budget}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def loaded(path: Path, budget: str, weights: str, device: str) -> dict[str, Any]:
    """Seconds and bytes of a load in this process."""
    settings = load_settings(device=device, weights=weights, expert_budget=budget)
    registry = Registry.discover(settings)
    locking = timed_arena()
    watch = Peak()
    started = time.perf_counter()
    model = load_model(path, settings, registry)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    seconds = time.perf_counter() - started
    assert model.source is not None
    ready = model.source.ready
    parts = ready.memory.parts
    return {
        "budget": budget,
        "device": str(model.device),
        "form": ready.form,
        "seconds": round(seconds, 3),
        "lock_seconds": round(sum(locking), 3),
        "peak_bytes": watch.end(model.device),
        "planned_bytes": sum(parts.get(name, 0) for name in LOADED_PARTS),
        "host_bytes": ready.experts.host_bytes,
    }


def timed_arena() -> list[float]:
    """The seconds of each arena that is made from now on: mapped, touched and locked."""
    seconds: list[float] = []
    make = arena.HostArena.__init__

    def timed(self: arena.HostArena, *arguments: Any) -> None:
        started = time.perf_counter()
        make(self, *arguments)
        seconds.append(time.perf_counter() - started)

    arena.HostArena.__init__ = timed  # type: ignore[method-assign, assignment]
    return seconds


class Peak:
    """The most memory of this process beside files, more than at the start."""

    def __init__(self) -> None:
        self._first = self._most = anonymous_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self._most = max(self._most, anonymous_bytes())

    def end(self, device: torch.device) -> int:
        """Bytes of the device, or of the host if that is the device."""
        self._over.set()
        self._thread.join()
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated(device)
        return max(self._most, anonymous_bytes()) - self._first


def anonymous_bytes() -> int:
    """Bytes of this process that are in no file."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def table(found: list[dict[str, Any]]) -> str:
    """A line for each budget."""
    rows = [
        f"{found[0]['device']}, weights {found[0]['form']}\n",
        "| budget | s | of which homes | times | peak MiB | planned MiB | homes MiB | |\n",
        "|---|---|---|---|---|---|---|---|\n",
    ]
    for one in found:
        peak, planned, host = (
            f"{one[name] / MIB:.0f}" for name in ("peak_bytes", "planned_bytes", "host_bytes")
        )
        missed = [
            what
            for what, is_missed in (
                ("slow", one["times"] > MOST_TIMES),
                ("over the plan", one["peak_bytes"] > one["planned_bytes"]),
            )
            if is_missed
        ]
        rows.append(
            f"| {one['budget']} | {one['seconds']} | {one['lock_seconds']} | {one['times']} | "
            f"{peak} | {planned} | {host} | {', '.join(missed)} |\n"
        )
    return "".join(rows)


if __name__ == "__main__":
    main()
