"""The plugin's registration with kinfolk."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.descriptors import DrafterSpec, Family
from kinfolk.draft_api import TinyDrafter
from kinfolk_gemma4.family import Gemma4

KINFOLK_API = (1, 0)


@hookimpl
def register_families() -> list[Family]:
    return [Gemma4()]


@hookimpl
def register_drafters() -> list[DrafterSpec]:
    where = "kinfolk_gemma4.assistant"
    return [
        DrafterSpec(
            "gemma4-assistant",
            summary="a small model of its own that reads the model's keys and values",
            architectures=("gemma4-assistant", "gemma4_assistant"),
            prepare=f"{where}.prepare:prepare",
            build=f"{where}.model:build",
            convert=f"{where}.convert:conversion",
            tiny=TinyDrafter(write=f"{where}.tiny:write", family="gemma4"),
        )
    ]
