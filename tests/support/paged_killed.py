"""Chats longer than their budget with a disk, until the process is killed:
``paged_killed.py MODEL FOLDER SEED``. Prints a line when the first turn is on the disk."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from kinfolk.engine.disk_tier import salt_record
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.registry import Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.state.disk import DiskCache

CONTEXT, SLICE, BUDGET = 1024, 128, 512
MESSAGE, ANSWER = 60, 8


def load(path: Path, registry: Registry) -> LoadedModel:
    options = {"device": "cpu", "dtype": "f32", "context": CONTEXT, "slots": 1, "draft": "off"}
    paging = {"kvflash": BUDGET, "kvflash_burst": 1, "kvflash_tau": 4, "kvflash_policy": "lru"}
    settings = load_settings(checkpoints=2, cache_memory=0.01, **options, **paging)
    return load_model(path, settings, registry)


def open_engine(loaded: LoadedModel, folder: Path) -> Engine:
    disk = DiskCache.open(folder, salt_record(loaded, SLICE), 1 << 30)
    limits = SchedulerLimits(
        slots=1,
        context=CONTEXT,
        step_tokens=2 * SLICE,
        slice=SLICE,
        vocabulary=loaded.info.vocabulary,
    )
    return Engine(loaded, limits, disk=disk)


def chat(engine: Engine, seed: int) -> None:
    known = [number * (31 + 2 * seed) % 700 for number in range(650)]
    for turn in range(4):
        prompt, forks = tuple(known), (len(known) - 20,)
        request = Request(f"{seed}.{turn}", prompt, ANSWER, keep=True, checkpoints=forks)
        events = list(engine.submit(request))
        known += [token for event in events[:-1] for token in event.tokens]
        if engine.stats()["disk_spills"]:
            sys.stdout.write("written\n")
            sys.stdout.flush()
        known += [number * 7 % 700 for number in range(MESSAGE)]


def main() -> None:
    torch.set_num_threads(1)
    path, folder, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    engine = open_engine(load(path, Registry.discover(load_settings())), folder)
    while True:
        chat(engine, seed)
        seed += 1


if __name__ == "__main__":
    main()
