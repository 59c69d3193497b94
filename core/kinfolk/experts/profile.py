"""How often each expert of a model was used, kept in a file from run to run. Torch-free."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kinfolk.errors import OutputError, SettingsError
from kinfolk.gguf.output import PARTIAL, claim

PROFILE_VERSION: Final = 2
SAVE_SECONDS: Final = 600.0
"""A profile that changed is written again after this time."""

LOCK_SECONDS: Final = 10.0
"""The longest wait for another process that writes the same profile."""

MOST_USES: Final = 2**63 - 1
"""A larger count of a file is refused, and a sum that would be larger is this."""

Counts = tuple[tuple[int, ...], ...]


class ExpertProfile:
    """Uses of experts by layer, those of the file and those of this run.

    ``layers`` are the numbers of experts of each layer, 0 = none. ``fingerprint`` names the model;
    the profile of another one is refused. If the path is a link, its target is the file. A profile
    that is not ``kept`` is only read. All methods are for one thread.
    """

    def __init__(
        self,
        path: Path,
        fingerprint: str,
        layers: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.fingerprint, self.layers = path, fingerprint, tuple(layers)
        self.kept = True
        self.tokens = 0
        self._uses = [[0] * experts for experts in layers]
        self._clock = clock
        self._saved_at = clock()
        self._written = self._now()

    @classmethod
    def load(
        cls,
        path: Path,
        fingerprint: str,
        layers: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> ExpertProfile:
        """The profile in a file, or an empty one if there is no file.

        A table of comma-separated counts, one line for each layer with experts, is read too; it
        names no model, so only its shape is checked. Raises :class:`SettingsError` for a file that
        cannot be read, is damaged, or is of another model, which stays as it is, and for a folder
        that does not exist.
        """
        profile = cls(path, fingerprint, layers, clock)
        if (found := profile._read()) is not None:
            profile._uses, profile.tokens = [list(row) for row in found[0]], found[1]
            profile._written = profile._now()
        elif not (folder := _target(path).parent).is_dir():
            raise SettingsError(
                f"--expert-profile {path}: there is no folder {folder} to write it to",
                field="expert_profile",
            )
        return profile

    @property
    def counts(self) -> Counts | None:
        """Uses by layer and expert; ``None`` if no expert was used yet."""
        counts, _ = self._now()
        return counts if any(map(any, counts)) else None

    def add(self, counts: Sequence[Sequence[int]], tokens: int) -> None:
        """Count more uses, of ``tokens`` tokens: all of them or, after an error, none.

        Raises :class:`ValueError` for counts of another shape and for negative numbers.
        """
        if problem := _shape_problem(counts, self.layers):
            raise ValueError(f"counts of experts: {problem}")
        if tokens < 0:
            raise ValueError(f"{tokens} tokens")
        for uses, more in zip(self._uses, counts, strict=True):
            uses[:] = (min(a + b, MOST_USES) for a, b in zip(uses, more, strict=True))
        self.tokens += tokens

    @property
    def due(self) -> bool:
        """Whether the last save was asked for ten minutes ago."""
        return self.due_in <= 0

    @property
    def due_in(self) -> float:
        """Seconds until the next save is due; negative if it is late."""
        return self._saved_at + SAVE_SECONDS - self._clock()

    def require_writable(self) -> None:
        """Look for what a save would fail at, and make and remove a file with the name of a new
        one. Raises :class:`SettingsError`."""
        target = _target(self.path)
        try:
            problem = _refused(target)
            temporary = _temporary(target)
            temporary.touch()
            temporary.unlink()
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            raise SettingsError(
                f"--expert-profile {self.path}: no file can be written there: {problem}; give "
                "another path",
                field="expert_profile",
            )

    def saving(self) -> Callable[[], None] | None:
        """A call that adds what was counted until now, and is not in the file yet, to the file;
        ``None`` if there is nothing, or the file is not kept. After a crash it is the old or the
        new file. Processes that save one file wait for each other; if it was removed, what is new
        begins another.

        Any thread may make the call, while more is counted, but one such call at a time. It raises
        :class:`OutputError` if the file cannot be written, or is none of this model any more; then
        the counts are still here, and the next save is due as late as after a success.
        """
        self._saved_at = self._clock()
        now = self._now()
        if not self.kept or now == self._written:
            return None

        def save() -> None:
            try:
                target = _target(self.path)
                with open(claim(target, LOCK_SECONDS), "wb"):
                    try:
                        self._add_to_file(target, now)
                        self._written = now
                    finally:
                        target.with_name(target.name + PARTIAL).unlink(missing_ok=True)
            except OSError as error:
                raise OutputError.of(self.path, error) from error
            except SettingsError as error:
                raise OutputError(str(error)) from error

        return save

    def save(self) -> None:
        """Write the file now, if there is anything new. Raises as :meth:`saving` says."""
        if (save := self.saving()) is not None:
            save()

    def _now(self) -> tuple[Counts, int]:
        return tuple(map(tuple, self._uses)), self.tokens

    def _read(self) -> tuple[Counts, int] | None:
        """Counts and tokens of the file, ``None`` if there is no file."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise SettingsError(
                    f"--expert-profile {self.path}: is no regular file; give another path",
                    field="expert_profile",
                )
            text = self.path.read_bytes().decode("utf-8-sig")  # Spreadsheets write the mark.
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise _refusal(self.path, f"cannot be read as text: {error}") from error
        if text.lstrip().startswith("{"):
            counts, tokens = _parsed(self.path, text, self.fingerprint)
        else:
            counts, tokens = _table(self.path, text, self.layers), 0
        if problem := _shape_problem(counts, self.layers):
            raise _refusal(self.path, f"'counts': {problem}")
        return counts, tokens

    def _add_to_file(self, target: Path, now: tuple[Counts, int]) -> None:
        """Replace the file by one with what it has and what of ``now`` was never written."""
        counts, tokens = now
        before, tokens_before = self._written
        if (found := self._read()) is None:
            found = tuple((0,) * experts for experts in self.layers), 0
        rows = zip(found[0], counts, before, strict=True)
        content = {
            "version": PROFILE_VERSION,
            "fingerprint": self.fingerprint,
            "tokens": found[1] + tokens - tokens_before,
            "counts": [
                [min(a + b - c, MOST_USES) for a, b, c in zip(*row, strict=True)] for row in rows
            ],
        }
        content["checksum"] = _checksum(content)
        _replace_file(target, (json.dumps(content) + "\n").encode())


def _target(path: Path) -> Path:
    """The file that a path names, behind all links."""
    return Path(os.path.realpath(path))


def _refusal(path: Path, problem: str) -> SettingsError:
    return SettingsError(
        f"--expert-profile {path}: {problem}; give another path, or remove the file",
        field="expert_profile",
    )


def _checksum(content: dict[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _parsed(path: Path, text: str, fingerprint: str) -> tuple[Counts, int]:
    """Counts and tokens of a file of ours. Raises :class:`SettingsError`, naming the field."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(path, f"is no valid JSON: {error}") from error
    version = content.get("version")
    if type(version) is not int or version != PROFILE_VERSION:
        raise _refusal(path, f"'version' is {version!r}, this release reads {PROFILE_VERSION}")
    counts, tokens = content.get("counts"), content.get("tokens")
    if not isinstance(counts, list) or not all(isinstance(row, list) for row in counts):
        raise _refusal(path, "'counts' is no list of lists")
    if type(tokens) is not int or tokens < 0:
        raise _refusal(path, f"'tokens' is {tokens!r}, which is no count")
    if content.get("checksum") != _checksum(content):
        raise _refusal(path, "'checksum' does not fit the other fields, so the file is damaged")
    if content.get("fingerprint") != fingerprint:
        raise _refusal(
            path,
            f"'fingerprint' is {content.get('fingerprint')!r}, but the model's is "
            f"{fingerprint!r}: the profile is of another model",
        )
    return tuple(tuple(row) for row in counts), tokens


def _table(path: Path, text: str, layers: tuple[int, ...]) -> Counts:
    """The counts of a comma-separated table. Layers without experts have no line."""
    rows: list[tuple[int, ...]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        values = [value.strip() for value in line.split(",")]
        for value in values:
            if not (value.isascii() and value.isdecimal() and len(value) <= 20):
                raise _refusal(path, f"line {number} has {value[:20]!r} where a count belongs")
        rows.append(tuple(map(int, values)))
    with_experts = [layer for layer, experts in enumerate(layers) if experts]
    if len(rows) != len(with_experts):
        raise _refusal(
            path, f"has {len(rows)} lines of counts, the model {len(with_experts)} such layers"
        )
    found = dict(zip(with_experts, rows, strict=True))
    return tuple(found.get(layer, ()) for layer in range(len(layers)))


def _shape_problem(counts: Sequence[Sequence[int]], layers: tuple[int, ...]) -> str:
    """Why these are no counts of a model with such layers; empty if they are."""
    if len(counts) != len(layers):
        return f"{len(counts)} layers, the model has {len(layers)}"
    for layer, (row, experts) in enumerate(zip(counts, layers, strict=True)):
        if len(row) != experts:
            return f"layer {layer} has {len(row)} experts, the model's has {experts}"
        if wrong := [n for n in row if type(n) is not int or not 0 <= n <= MOST_USES]:
            return f"layer {layer} has {wrong[0]!r} where a count belongs"
    return ""


def _replace_file(path: Path, data: bytes) -> None:
    """Write a file whose bytes are on the disk before it has its name. It keeps mode and, where the
    system permits, owner of the one that it replaces."""
    temporary = _temporary(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                _keep_access(descriptor, path.stat())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _keep_access(descriptor: int, old: os.stat_result) -> None:
    mode = stat.S_IMODE(old.st_mode)
    for owner in (old.st_uid, -1):
        with suppress(OSError):
            os.fchown(descriptor, owner, old.st_gid)
            break
    else:
        mode &= ~stat.S_IRWXG  # They were another group's.
    with suppress(OSError):
        os.fchmod(descriptor, mode)


def _temporary(path: Path) -> Path:
    """A name beside a file for one that will take its place."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")


def _refused(target: Path) -> str:
    """Why another file cannot take the place of ``target``, if that can be told; else empty."""
    partial, folder = target.with_name(target.name + PARTIAL), target.parent.stat()
    if partial.is_dir():
        return f"{partial} is a directory"
    if partial.exists() and not os.access(partial, os.W_OK):
        return f"{partial} is another user's"
    if _is_mounted(target):
        return "it is mounted as a single file, which cannot be replaced"
    if folder.st_mode & stat.S_ISVTX and target.exists():
        owners = (0, folder.st_uid, target.stat().st_uid)
        return "" if os.geteuid() in owners else "it is another user's, in a sticky folder"
    return ""


def _is_mounted(path: Path) -> bool:
    """Whether a file is a mount point, as a single file of a container; on Linux."""
    name = os.fsencode(path)
    for byte in (b"\\", b" ", b"\t", b"\n"):
        name = name.replace(byte, b"\\%03o" % ord(byte))
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return False
    return any(line.split(b" ")[4:5] == [name] for line in mounts.split(b"\n"))
