"""What the user asked of those who score chunks."""

from __future__ import annotations

from pathlib import Path

from kinfolk.errors import SettingsError
from kinfolk.settings import Settings


def chunk_drafter(settings: Settings) -> Path | None:
    """The file of the model that scores chunks, ``None`` if none does. Raises
    :class:`SettingsError` for settings that contradict each other."""
    file, drafts = settings.kvflash_drafter, settings.kvflash_policy == "drafter"
    if drafts and file is None:
        raise SettingsError(
            "--kvflash-policy drafter needs a small model that reads along: name its file with "
            "--kvflash-drafter",
            field="kvflash_policy",
        )
    if file is not None and not drafts:
        raise SettingsError(
            f"--kvflash-drafter is for --kvflash-policy drafter, not {settings.kvflash_policy}",
            field="kvflash_drafter",
        )
    return None if file is None or settings.kvflash == "off" else file


def refuse_oracle(settings: Settings) -> None:
    """Raise :class:`SettingsError` if others would wait for a scorer that is for measurements."""
    if settings.kvflash != "off" and settings.kvflash_policy == "oracle":
        raise SettingsError(
            "--kvflash-policy oracle is for tests and measurements: it keeps exact keys in host "
            "memory that no plan counts, and every request waits for its scores; use qk",
            field="kvflash_policy",
        )
