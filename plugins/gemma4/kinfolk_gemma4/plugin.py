"""The plugin's registration with kinfolk."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.descriptors import Family
from kinfolk_gemma4.family import Gemma4

KINFOLK_API = (1, 0)


@hookimpl
def register_families() -> list[Family]:
    return [Gemma4()]
