"""Atomic writer of GGUF files: a file gets its name when it is complete."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

from kinfolk.errors import CapacityError, OutputError
from kinfolk.gguf.metadata import ARCHITECTURE_KEY
from kinfolk.gguf.reader import DEFAULT_ALIGNMENT
from kinfolk.gguf.values import ByteArray, Value, value_of

PARTIAL: Final = ".partial"
"""Suffix of the name of an incomplete file."""

_TRY_SECONDS: Final = 0.02
"""Between two attempts to lock a file."""

Progress = Callable[[int, int], None]
"""Callback (bytes of tensors written so far, bytes of all tensors)."""


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor to write: ``shape`` in torch order, ``nbytes`` bytes in the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """A range of a tensor: ``produce()`` returns its bytes from ``offset`` on, from any thread."""

    tensor: str
    offset: int
    produce: Callable[[], ByteArray]


class GGUFOutput:
    """Writes a GGUF file whose tensors arrive in any order and from several threads.

    ``metadata`` holds plain values or :class:`Value`; keys keep their order. The file is called
    ``NAME.partial`` until the ``with`` block ends. If the block raises, the file is removed; a
    killed process leaves the partial file, which the next run replaces.

    Raises :class:`OutputError` if the file exists (unless ``overwrite``), is being written by
    another process or cannot be written,
    :class:`CapacityError` if the disk is too small.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, object],
        tensors: Iterable[OutputTensor],
        *,
        overwrite: bool = False,
    ):
        self.path = path
        self.partial = path.with_name(path.name + PARTIAL)
        self._metadata = {key: value_of(key, item) for key, item in metadata.items()}
        self._tensors = tuple(tensors)
        self._overwrite = overwrite
        self._starts: dict[str, int] = {}
        self._missing = {tensor.name: tensor.nbytes for tensor in self._tensors}
        self._lock = threading.Lock()
        self._file = -1

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def __enter__(self) -> GGUFOutput:
        check_target(self.path, self._overwrite)
        self._file = claim(self.path)
        try:
            _write_header(self.partial, self._metadata, self._tensors)
            end = self._place(self.partial.stat().st_size)
            self._check_room(end)
            os.ftruncate(self._file, end)
        except OSError as error:
            self._discard()
            raise OutputError.of(self.path, error) from None
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._discard()
            return
        incomplete = [name for name, missing in self._missing.items() if missing]
        if incomplete:
            self._discard()
            raise ValueError(f"tensors that were not written in full: {', '.join(incomplete[:5])}")
        try:
            os.fsync(self._file)
            os.replace(self.partial, self.path)
        except BaseException as failure:
            self._discard()
            if isinstance(failure, OSError):
                raise OutputError.of(self.path, failure) from None
            raise
        os.close(self._file)  # with its name, so that no other process takes it for its own

    def write(self, name: str, data: ByteArray, offset: int = 0) -> None:
        """Write ``data`` to the tensor from byte ``offset`` on. Every byte must be written once.

        Raises ``ValueError`` for more bytes than the tensor has.
        """
        view = np.ascontiguousarray(data).reshape(-1).data.cast("B")
        with self._lock:
            self._missing[name] -= len(view)
            if self._missing[name] < 0:
                raise ValueError(f"more bytes than tensor {name!r} has")
        position = self._starts[name] + offset
        try:
            while view:
                written = os.pwrite(self._file, view, position)
                position, view = position + written, view[written:]
        except OSError as error:
            raise OutputError.of(self.path, error) from None

    def run(self, jobs: Iterable[Job], *, workers: int, progress: Progress | None = None) -> None:
        """Run the jobs in ``workers`` threads, at most ``2 * workers + 1`` queued at a time.

        Raises the exception of the first job that fails.
        """
        total, done = self.nbytes, 0
        report = progress or (lambda done, total: None)
        running: set[Future[int]] = set()
        with ThreadPoolExecutor(workers) as pool:
            try:
                for job in jobs:
                    running.add(pool.submit(self._execute, job))
                    if len(running) > 2 * workers:
                        finished, running = wait(running, return_when=FIRST_COMPLETED)
                        done += sum(future.result() for future in finished)
                        report(done, total)
                for future in running:
                    done += future.result()
                    report(done, total)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _execute(self, job: Job) -> int:
        data = job.produce()
        self.write(job.tensor, data, job.offset)
        return data.nbytes

    def _place(self, header: int) -> int:
        """Assign an offset to every tensor; returns the size of the file in bytes."""
        position = _aligned(header)
        for tensor in self._tensors:
            self._starts[tensor.name] = position
            position += _aligned(tensor.nbytes)
        return position

    def _check_room(self, size: int) -> None:
        free = shutil.disk_usage(self.partial.parent).free + self.partial.stat().st_size
        if size > free:
            raise CapacityError(
                f"{self.path} needs {size / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free "
                f"on its disk; free {(size - free) / 1e9:.2f} GB or choose another place"
            )

    def _discard(self) -> None:
        with suppress(OSError):
            self.partial.unlink()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def claim(path: Path, wait_seconds: float = 0.0) -> int:
    """A descriptor of the empty partial file of ``path``, which no other process writes as long as
    it is open. ``wait_seconds``: how long to wait for another process. Raises
    :class:`OutputError`."""
    partial, end = path.with_name(path.name + PARTIAL), time.monotonic() + wait_seconds
    try:
        while True:
            file = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                _lock(file, end)
                if os.path.samestat(os.fstat(file), os.stat(partial)):
                    os.ftruncate(file, 0)
                    return file
            except FileNotFoundError:
                pass  # who wrote it has just ended
            except BaseException:
                os.close(file)
                raise
            os.close(file)
    except BlockingIOError:
        raise OutputError(f"{path}: another process is writing it") from None
    except OSError as error:
        raise OutputError.of(path, error) from None


def _lock(file: int, end: float) -> None:
    """Try until the time ``end``. Raises :class:`BlockingIOError`. Where a file system has no
    locks, nobody is kept out."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(_TRY_SECONDS)
            continue
        except OSError as error:
            if error.errno not in (ENOSYS, EOPNOTSUPP, ENOLCK):
                raise
        return


def check_target(path: Path, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise :class:`OutputError` if no file can be created at ``path``, or if it is one of the
    ``inputs``."""
    if path.is_file() and any(each.is_file() and path.samefile(each) for each in inputs):
        raise OutputError(f"{path} is a file that is read; choose another name for what is written")
    if path.is_dir():
        raise OutputError(f"{path} is a directory; name the file to write")
    if path.exists() and not path.is_file():
        raise OutputError(f"{path} exists and is not a regular file; choose another name")
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists; choose another name, or replace it with --overwrite")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the directory {path.parent} does not exist; create it first")


def _aligned(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


# -- header ---------------------------------------------------------------------------------------

_WRITER_TYPES: Final = {
    "u8": "UINT8",
    "i8": "INT8",
    "u16": "UINT16",
    "i16": "INT16",
    "u32": "UINT32",
    "i32": "INT32",
    "u64": "UINT64",
    "i64": "INT64",
    "f32": "FLOAT32",
    "f64": "FLOAT64",
    "bool": "BOOL",
    "string": "STRING",
}


def _write_header(
    path: Path, metadata: Mapping[str, Value], tensors: Iterable[OutputTensor]
) -> None:
    """Write magic, metadata and tensor table, with gguf-py."""
    from gguf import GGUFValueType, GGUFWriter

    writer = GGUFWriter(None, str(metadata[ARCHITECTURE_KEY].content))
    writer.kv_data[0].clear()
    for key, value in metadata.items():
        kind = GGUFValueType[_WRITER_TYPES[value.type]]
        if not value.is_array:
            writer.add_key_value(key, value.content, kind)
        elif len(value):
            writer.add_key_value(key, _items(value), GGUFValueType.ARRAY, kind)
    for tensor in tensors:
        # The raw type takes precedence over the numpy dtype.
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, tensor.ggml_type
        )
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        for file in writer.fout or ():
            file.close()


def _items(value: Value) -> list[object]:
    content = value.content
    assert not isinstance(content, int | float | str)
    return content.tolist() if isinstance(content, np.ndarray) else list(content)
