"""The plugin's registration with kinfolk."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.descriptors import Family
from kinfolk_laguna.family import Laguna

KINFOLK_API = (1, 0)


@hookimpl
def register_families() -> list[Family]:
    return [Laguna()]
