"""Formats, op back ends and drafters of the core, registered through the same hooks as a plugin's.

The registry imports this module by name, so that it depends on none of the modules imported here.
"""

from __future__ import annotations

from kinfolk.descriptors import DrafterSpec, OpBackend, QuantFormat
from kinfolk.draft_api import TinyDrafter
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
            "copies what followed an earlier occurrence of the last tokens",
        ),
        DrafterSpec(
            "dflash",
            summary="a block of tokens in one forward, from the model's own features",
            architectures=("dflash", "*dflash-draft"),
            prepare="kinfolk.spec.dflash.prepare:prepare",
            build="kinfolk.spec.dflash.model:build",
            convert="kinfolk.convert.dflash.conversion:convert",
            tiny=TinyDrafter(write="kinfolk.spec.dflash.tiny:write"),
        ),
        DrafterSpec(
            "mtp",
            summary="the block of the model's own file that predicts further tokens",
            prepare="kinfolk.spec.mtp.prepare:prepare",
            build="kinfolk.spec.mtp.model:build",
            options=("hidden", "head"),
            tiny=TinyDrafter(),
        ),
        DrafterSpec(
            "random",
            "kinfolk.spec.random_drafts:create",
            "random tokens, to measure the cost of drafted rows",
        ),
    ]
