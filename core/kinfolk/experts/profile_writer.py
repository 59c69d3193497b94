"""Writes a profile of experts beside the steps, which do not wait for the disk. Torch-free."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kinfolk.errors import OutputError
from kinfolk.experts.profile import ExpertProfile

log = logging.getLogger(__name__)


class ProfileWriter:
    """Saves a profile every ten minutes in a thread, which ends with the file. A file that cannot
    be written is logged. All methods are for one thread, that of the profile."""

    def __init__(self, profile: ExpertProfile) -> None:
        self._profile = profile
        self._thread: threading.Thread | None = None

    def save_if_due(self) -> None:
        """Begin to save if it is time and the last save has ended; returns at once."""
        running = self._thread is not None and self._thread.is_alive()
        if running or not self._profile.due:
            return
        if (save := self._profile.saving()) is not None:
            # No daemon: a process that ends without finish waits until the file is whole.
            self._thread = threading.Thread(target=_logged, args=(save,), name="kinfolk-profile")
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                log.warning("--expert-profile is not written for now: %s", error)

    def finish(self) -> None:
        """Save what is not saved yet, and wait for it."""
        if self._thread is not None:
            self._thread.join()
        _logged(self._profile.save)


def _logged(save: Callable[[], None]) -> None:
    try:
        save()
    except OutputError as error:
        log.warning("--expert-profile cannot be written: %s", error)
