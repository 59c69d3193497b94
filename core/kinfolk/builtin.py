"""What the core itself registers, through the same hooks as every plugin."""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import DrafterSpec, OpBackend, QuantFormat
from kinfolk.hookspecs import API, hookimpl

KINFOLK_API = API


@hookimpl
def register_quant_formats() -> list[QuantFormat]:
    from kinfolk.quant.formats import BUILTIN_FORMATS

    return list(BUILTIN_FORMATS)


@hookimpl
def register_drafters() -> list[DrafterSpec]:
    return [
        DrafterSpec(
            "ngram",
            "kinfolk.spec.ngram:create",
            "repeats what followed the last tokens the last time they occurred",
        )
    ]


_OPS: Final = {
    "embedding": ("embedding", ("reference",)),
    "linear": ("linear", ("reference", "torch")),
    "rms_norm": ("rms_norm", ("reference", "torch")),
    "rope": ("rope", ("reference",)),
    "silu_mul": ("silu_mul", ("reference",)),
    "kv_write": ("kv_write", ("reference",)),
    "paged_attention": ("paged_attention", ("reference", "torch")),
    "causal_conv": ("causal_conv", ("reference", "torch")),
    "causal_conv_commit": ("causal_conv", ("reference", "torch")),
    "gated_delta": ("gated_delta", ("reference", "torch")),
    "gated_delta_commit": ("gated_delta", ("reference", "torch")),
}
"""Each op: its folder in kinfolk_kernels, and the implementations there from slow to fast."""


@hookimpl
def register_op_backends() -> list[OpBackend]:
    return [
        OpBackend(op, name, f"kinfolk_kernels.{folder}.{name}:{op}", priority=10 * place)
        for op, (folder, names) in _OPS.items()
        for place, name in enumerate(names)
    ]
