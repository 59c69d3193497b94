"""The plugin's registration; kinfolk imports the functions by reference at their first use."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.descriptors import OpBackend

KINFOLK_API = (1, 0)
_REPLACED = "kinfolk_op_demo.inplace"
_ADDED = "kinfolk_op_demo.clipped_swiglu"


@hookimpl
def register_op_backends() -> list[OpBackend]:
    return [
        OpBackend(
            "act_and_mul",
            "inplace",
            f"{_REPLACED}:act_and_mul",
            f"{_REPLACED}:supports",
            priority=-1,
        ),
        OpBackend(
            "clipped_swiglu",
            "inplace",
            f"{_ADDED}:clipped_swiglu_inplace",
            f"{_ADDED}:supports_inplace",
            priority=10,
        ),
    ]
