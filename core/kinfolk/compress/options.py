"""What the user asked of the compression of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kinfolk.compress.keep_ratio import KeepCurve
from kinfolk.compress.rules import CompressionMode
from kinfolk.errors import SettingsError
from kinfolk.settings import Settings


@dataclass(frozen=True, slots=True)
class CompressionOptions:
    """``mode`` of requests that name none; ``threshold`` in tokens; ``drafter``: the file of the
    model that scores prompts."""

    mode: CompressionMode
    threshold: int
    curve: KeepCurve
    drafter: Path

    @classmethod
    def of(cls, settings: Settings) -> CompressionOptions | None:
        """``None`` if no prompt can be compressed. Raises :class:`SettingsError` for settings that
        contradict each other, and for a curve that is none."""
        drafter = settings.prefill_compression_drafter
        points = settings.prefill_compression_curve
        try:
            curve = KeepCurve.flat(settings.prefill_compression_keep_ratio)
            curve = KeepCurve.parse(points.replace(",", " ").split()) if points else curve
        except ValueError as error:
            raise SettingsError(
                f"--prefill-compression-curve: {error}", field="prefill_compression_curve"
            ) from None
        if drafter is None:
            if settings.prefill_compression != "off":
                raise SettingsError(
                    f"--prefill-compression {settings.prefill_compression} needs a small model "
                    "that reads prompts first: name its file with --prefill-compression-drafter",
                    field="prefill_compression",
                )
            return None
        return cls(
            settings.prefill_compression,
            settings.prefill_compression_threshold,
            curve,
            drafter,
        )
