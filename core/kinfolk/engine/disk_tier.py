"""The disk behind an engine: host memory handed to the disk's thread, and what became of it.

The engine's thread decides and hands over; it never waits for the disk, but at the end: a closed
engine has written what conversations go on from.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Final

from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.engine.preparing import NO_HOST_MEMORY
from kinfolk.errors import SettingsError
from kinfolk.plans import Recurrent, StatePlan
from kinfolk.sched.scheduler import Scheduler
from kinfolk.settings import Settings
from kinfolk.state.cache_salt import SaltRecord, model_hash
from kinfolk.state.chain_hash import paged_root
from kinfolk.state.disk import PREFIX_FOLDER, DiskCache
from kinfolk.state.disk_books import DiskBooks
from kinfolk.state.disk_format import PointTensor
from kinfolk.state.disk_requests import PointRead, PointWrite, StoreReport, point_hash
from kinfolk.state.disk_thread import DiskThread
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.layout import slot_bytes, tensor_bytes
from kinfolk.state.operations import DiskOperation, SpillSaved
from kinfolk.state.prefix import PrefixCache
from kinfolk.state.state import State

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 2.0
"""How long nothing runs before prefixes on the device are written too."""

_POLL_SECONDS: Final = 0.002
"""How often an idle engine looks whether copies that the disk waits for are done."""

_NOT_THERE: Final = "memory has no state of it: there was no room"

_QUIET_SECONDS: Final = 1.0
"""How long closing may take before something is said about it."""

_NOT_WRITTEN: Final = StoreReport("dropped", reason="it was cancelled")


class DiskTier:
    """Carries out ``SpillSaved`` and ``FetchSaved`` with a thread of its own. All but :meth:`abort`
    is called on the engine's thread. ``wake`` is notified when there is something to
    :meth:`take`."""

    def __init__(
        self,
        cache: DiskCache,
        kv_cache: KVCacheManager,
        prefixes: PrefixCache,
        runner: ModelRunner,
        wake: threading.Condition,
        paging: str = "",
    ) -> None:
        self.books = DiskBooks(kv_cache.checkpoints, prefixes, cache, paging)
        self.thread = DiskThread(cache)
        self.cache = cache
        self._kv_cache = kv_cache
        self._prefixes = prefixes
        self._runner = runner
        self._state = runner.state
        self._state.to_disk = self._carry_out
        self._tensors = recurrent_tensors(self._state.plan)
        self._wake = wake
        self._reports: deque[tuple[int, StoreReport | bool]] = deque()
        # Reads of rows that pending copies may still use: events that they are done.
        self._unread: deque[tuple[Any, int, PointRead]] = deque()
        self._aborted = False
        # The first turn after a start is likely to go on from one of them.
        longest = max((point.length for point in cache.points()), default=0)
        self._state.host.expect(kv_cache.host.layout.prefix_pages(longest))

    @property
    def root(self) -> int:
        """The root of the hashes of all tokens."""
        return self.cache.root

    @property
    def busy(self) -> bool:
        """Whether :meth:`take` has something to do."""
        return bool(self._reports or self._unread)

    # -- the engine's thread ------------------------------------------------------------------

    def take(self, scheduler: Scheduler) -> None:
        """Hand over reads that need not wait any more and hits, and tell the scheduler what has
        ended."""
        self._submit_reads()
        while self.books.hits:
            self.thread.call(partial(self.cache.touch, self.books.hits.pop()))
        while self._reports:
            job, outcome = self._reports.popleft()
            if isinstance(outcome, StoreReport):
                scheduler.spilled(job, outcome)
            else:
                scheduler.fetched(job, read=outcome)

    def name(self, tokens: HashedTokens, name: str, heard: Callable[[str], None]) -> None:
        """Write the prefix after exactly these tokens under a name, or name it on the disk.
        ``heard`` is called once: with "" when it is there, else with why not."""
        known = [tokens]
        if self.books.paging:
            known.append(tokens.with_root(paged_root(self.root, self.books.paging)))
        for one in known:
            entry = self._prefixes.at(one, len(one))
            if entry is not None:
                self.books.name(entry, name, heard)
                return
        keys = [point_hash(one.chain, one.packed, len(one)) for one in known]

        def given(future: Future[bool]) -> None:
            try:
                heard("" if future.result() else _NOT_THERE)
            except (CancelledError, InterruptedError):
                heard("the disk cache was closed")
            except Exception as error:
                heard(str(error))

        def give() -> bool:
            return any(self.cache.give_name(name, key) for key in keys)

        self.thread.call(give).add_done_callback(given)

    def rest(self, scheduler: Scheduler, seconds: float) -> float | None:
        """Nothing can run, and has not for some seconds. Returns after how many to ask again,
        ``None`` = not before :attr:`busy`."""
        left = None if scheduler.running else IDLE_SECONDS - seconds
        self._work(idle=left is not None and left <= 0)
        if self._polls:
            return _POLL_SECONDS
        return None if left is None or left <= 0 else left

    def finish(self, scheduler: Scheduler) -> None:
        """All requests have ended: write what conversations go on from, and end the thread."""
        try:
            self._finish(scheduler)
        except Exception as error:
            log.warning("not all prefixes were written to the disk: %s", error)
            self.thread.close(flush=False)
        else:
            self.thread.close(flush=not self._aborted)
            self.take(scheduler)
        self.books.forget()

    def forget(self) -> None:
        """A step has failed: wait until nobody uses host memory, whose rows are going to go. The
        books forget with it."""
        self.thread.abandon()
        self._unread.clear()
        self._reports.clear()

    def abort(self) -> None:
        """Let :meth:`finish` end at once. Any thread may call it."""
        with self._wake:
            self._aborted = True
            self._wake.notify_all()

    def _finish(self, scheduler: Scheduler) -> None:
        started, said = time.monotonic(), False
        while not self._aborted:
            self.take(scheduler)
            if not self._work(closing=True) and not self.books.fetches:
                return
            late = time.monotonic() - started > _QUIET_SECONDS
            if late and not said:
                said = True
                log.warning("writing prefixes to the disk; Ctrl-C ends it")
            with self._wake:
                self._wake.wait_for(
                    lambda: self._reports or self._aborted,
                    _POLL_SECONDS if self._polls else _QUIET_SECONDS / 4,
                )

    @property
    def _polls(self) -> bool:
        return bool(self._unread) or any(not spill.sent for spill in self.books.spills.values())

    def _work(self, *, idle: bool = False, closing: bool = False) -> bool:
        """Decide what is written, and carry out operations while no step does; false if nothing is
        left to be written."""
        while True:
            more = self.books.spill(idle=idle, closing=closing)
            operations = self._kv_cache.take_operations()
            if operations:
                self._runner.apply(operations)
            self._kv_cache.arrived(self._runner.take_arrived())
            self._submit_reads()
            if not operations:
                return more

    # -- the disk's thread --------------------------------------------------------------------

    def _carry_out(self, operation: DiskOperation) -> None:
        blocks = HostBlocks(self._state, operation.blocks)
        recurrent = None
        if operation.recurrent:
            recurrent = host_row(self._state, operation.recurrent, slot_bytes(self._state.plan))
        if isinstance(operation, SpillSaved):
            spill = self.books.spills[operation.job]
            tokens, length = spill.entry.tokens, spill.entry.length
            paging, seen = self.books.paged(spill.entry)
            entry = PointWrite(
                packed=tokens.packed,
                chain=tokens.chain,
                length=length,
                first=spill.first,
                blocks=blocks,
                recurrent=recurrent,
                tensors=self._tensors,
                name="" if spill.name is None else spill.name.text,
                paging=paging,
                residency=seen,
            )
            self._hear(operation.job, self.thread.write(entry), _NOT_WRITTEN)
        else:
            fetch = self.books.fetches[operation.job]
            packed = fetch.tokens.packed
            read = PointRead(fetch.point, packed, blocks, recurrent, self._tensors, fetch.residency)
            self._unread.append((self._state.copies.so_far(), operation.job, read))
            self._submit_reads()

    def _submit_reads(self) -> None:
        while self._unread and self._state.copies.streams.is_done(self._unread[0][0]):
            _, job, read = self._unread.popleft()
            self._hear(job, self.thread.read(read), False)

    def _hear(self, job: int, future: Future[Any], cancelled: StoreReport | bool) -> None:
        def ended(future: Future[Any]) -> None:
            try:
                outcome = future.result()
            except (CancelledError, InterruptedError):
                outcome = cancelled
            except Exception as error:
                log.exception("the disk cache failed")
                outcome = StoreReport("dropped", reason=str(error)) if cancelled else False
            with self._wake:
                self._reports.append((job, outcome))
                self._wake.notify_all()

        future.add_done_callback(ended)


class HostBlocks(Mapping[tuple[int, int], Sequence[memoryview]]):
    """Bytes of blocks in host memory by pool and number, which the disk's thread looks up: a long
    prefix has thousands of them."""

    def __init__(self, state: State, blocks: Iterable[tuple[int, int, int]]) -> None:
        self._state = state
        self._identities = {(pool, number): identity for pool, number, identity in blocks}

    def __getitem__(self, place: tuple[int, int]) -> Sequence[memoryview]:
        nbytes = self._state.pools[place[0]].layout.block_bytes
        return host_row(self._state, self._identities[place], nbytes)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._identities)

    def __len__(self) -> int:
        return len(self._identities)


def host_row(state: State, identity: int, nbytes: int) -> list[memoryview]:
    """The first bytes of a row of host memory, in the parts that it has."""
    parts = []
    for part in state.host.parts(identity):
        size = min(nbytes, part.numel())
        if size:
            parts.append(part[:size].numpy().data)
        nbytes -= size
    return parts


def open_disk(loaded: LoadedModel, settings: Settings) -> DiskCache | None:
    """The disk cache of a model, if the user asked for one (--cache-disk) and there are checkpoints
    to be kept."""
    if not settings.cache_disk or not loaded.limits.checkpoints:
        return None
    if loaded.limits.host_bytes == 0:
        raise SettingsError(NO_HOST_MEMORY, field="cache_disk")
    folder = settings.cache_dir / PREFIX_FOLDER
    limit = int(settings.cache_disk * 2**30)
    return DiskCache.open(folder, salt_record(loaded, loaded.slice_rows), limit)


def salt_record(loaded: LoadedModel, slice_rows: int) -> SaltRecord:
    """What the stored state of a model depends on."""
    dtype = str(loaded.dtype).removeprefix("torch.")
    packed = ""
    if loaded.source is not None and loaded.packed:
        packed = f" {loaded.source.ready.activations}"
    return SaltRecord(
        model=loaded.info.name or loaded.file.path.name,
        model_hash=model_hash(loaded.file),
        layout_hash=loaded.plan.layout_hash(),
        slice_length=slice_rows,
        activations=dtype + packed,
    )


def recurrent_tensors(plan: StatePlan) -> tuple[PointTensor, ...]:
    """The tensors in the recurrent bytes of a slot, one after the other."""
    found, offset = [], 0
    for index, layer in enumerate(plan.layers):
        for tensor in layer.tensors if isinstance(layer, Recurrent) else ():
            found.append(PointTensor(index, tensor.name, tensor.dtype, tensor.shape, offset))
            offset += tensor_bytes(tensor)
    return tuple(found)
