"""The plugin's registration; the drafter itself is imported when one of its files is opened."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.descriptors import DrafterSpec
from kinfolk.draft_api import TinyDrafter
from kinfolk_drafter_demo.file import ARCHITECTURE

KINFOLK_API = (1, 0)


@hookimpl
def register_drafters() -> list[DrafterSpec]:
    return [
        DrafterSpec(
            "recurrent",
            summary="a small recurrent head on the model's last features",
            architectures=(ARCHITECTURE,),
            prepare="kinfolk_drafter_demo.file:prepare",
            build="kinfolk_drafter_demo.head:RecurrentHead",
            tiny=TinyDrafter(write="kinfolk_drafter_demo.tiny:write"),
        )
    ]
