"""The gemma4 plugin: what it registers with kinfolk. Nothing yet."""

from __future__ import annotations

KINFOLK_API = (1, 0)
