"""What the core itself registers, through the same hooks as every plugin.

This is the one place that knows what the rows above the registry bring; the registry imports it by
name.
"""

from __future__ import annotations

from kinfolk.descriptors import DrafterSpec, OpBackend, QuantFormat
from kinfolk.hookspecs import API, hookimpl
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk.quant.formats import BUILTIN_FORMATS

KINFOLK_API = API


@hookimpl
def register_quant_formats() -> list[QuantFormat]:
    return list(BUILTIN_FORMATS)


@hookimpl
def register_op_backends() -> list[OpBackend]:
    return list(OP_BACKENDS)


@hookimpl
def register_drafters() -> list[DrafterSpec]:
    return [
        DrafterSpec(
            "ngram",
            "kinfolk.spec.ngram:create",
            "prompt lookup: the tokens that followed the same text earlier",
        ),
        DrafterSpec(
            "random",
            "kinfolk.spec.random_drafts:create",
            "random tokens, to measure what drafted rows cost",
        ),
    ]
