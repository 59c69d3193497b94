"""Rows of ``benchmarks/paging.py`` in which no bit may differ: chunks that leave and come back to
other blocks before every step, and a budget that nothing has left yet."""

from __future__ import annotations

import argparse
import random

import torch
from paging_engine import EngineKind, OneFile, Row

from kinfolk.errors import SettingsError
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import Request, Sampling
from kinfolk.testing.driver import Driver
from kinfolk.types import CHUNK_POSITIONS

BEGINNING = 300
"""Tokens before those that are forced one by one."""

HOST_GIB = 1.0
"""For all chunks of these tokens."""

LOGPROBS = 5


def relocated(file: OneFile, options: argparse.Namespace, *, replays: bool) -> Row:
    """Logits of forced tokens before each of which random chunks have left and come back to other
    blocks, against the same tokens with everything in its place."""
    steps = options.forced
    positions = BEGINNING + steps
    kind = EngineKind(options.codecs[0], 1)
    room = {"context": positions + CHUNK_POSITIONS, "cache_memory": HOST_GIB}
    with file.loaded(kind, **room) as (loaded, _):
        source = random.Random(1)
        tokens = [source.randrange(loaded.info.vocabulary) for _ in range(positions)]
        plain, paged = (Driver(loaded, replays=replays) for _ in range(2))
        still, moved = plain.open(positions), paged.open(positions, paged=True)
        tables, pool = paged.kv_cache.tables, loaded.plan.windows.index(None)
        for drive, lease in ((plain, still), (paged, moved)):
            drive.feed({lease: tokens[:BEGINNING]}, rows=BEGINNING // 2)
        differing, exchanges = 0, 0
        for token in tokens[BEGINNING:]:
            full = range(tables.length(moved) // CHUNK_POSITIONS)
            gone = source.sample(full, source.randint(1, len(full)))
            paged.exchange(moved, gone, pool=pool, seed=source.randrange(99))
            exchanges += len(gone)
            found = paged.feed({moved: [token]})[moved]
            differing += not torch.equal(found, plain.feed({still: [token]})[still])
    return {"steps": steps, "exchanges": exchanges, "differing": differing}


def unmoved(file: OneFile, options: argparse.Namespace) -> Row:
    """Tokens and log-probabilities of an answer with a budget that nothing has left yet, against
    those without a budget."""
    chunks = options.budget // CHUNK_POSITIONS - options.burst - 2
    prompt = chunks * CHUNK_POSITIONS - CHUNK_POSITIONS // 2
    answer = min(options.tokens, CHUNK_POSITIONS)
    context, found, moved = 2 * options.budget, [], 0
    for scorer, paging in (("", {}), ("qk", _paging(options))):
        kind = EngineKind(options.codecs[0], 1, scorer)
        with file.opened(kind, CHUNK_POSITIONS, context=context, **paging) as bench:
            sampling = Sampling(logprobs=LOGPROBS)
            request = Request("unmoved", bench.text(prompt, 5), answer, sampling)
            *events, end = bench.engine.submit(request)
            if not isinstance(end, Finished) or end.error is not None:
                raise SettingsError(f"the answer ended with {end}")
            emitted = (each for each in events if isinstance(each, Emitted))
            found.append([(each.tokens, each.logprobs) for each in emitted])
            moved += bench.engine.stats()["kvflash_evictions"]
    differing = sum(ours != theirs for ours, theirs in zip(*found, strict=True))
    return {"prompt": prompt, "tokens": answer, "evictions": moved, "differing": differing}


def _paging(options: argparse.Namespace) -> Row:
    host = {} if options.host is None else {"kvflash_host": options.host}
    return {"kvflash": options.budget, "kvflash_burst": options.burst, **host}
