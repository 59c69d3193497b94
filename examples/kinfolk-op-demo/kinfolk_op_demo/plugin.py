"""What the plugin registers with kinfolk; functions are named and imported at their first use."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.descriptors import OpBackend

KINFOLK_API = (1, 0)
_WHERE = "kinfolk_op_demo.inplace"


@hookimpl
def register_op_backends() -> list[OpBackend]:
    return [
        OpBackend("silu_mul", "inplace", f"{_WHERE}:silu_mul", f"{_WHERE}:supports", priority=-1)
    ]
