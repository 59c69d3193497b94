"""The op back ends that come with kinfolk, as descriptors: importing this loads no torch."""

from __future__ import annotations

from kinfolk.descriptors import OpBackend

REFERENCE, CPU, GPU = 0, 10, 20
"""Priorities: the reference is the last resort, an implementation for the CPU comes before it, and
one for GPUs is asked first where there is one."""


PLAIN = frozenset(
    {
        "linear",
        *("rms_norm", "add_rms_norm", "gated_rms_norm"),
    }
)
"""Ops of which every back end is plain tensor arithmetic: a graph can hold them, and nothing that
they are given changes."""


def _backend(op: str, folder: str, name: str, priority: int) -> OpBackend:
    module = name if name == "reference" else f"{name}_backend"
    function = f"kinfolk_kernels.{folder}.{module}:{op}"
    plain = op in PLAIN
    return OpBackend(op, name, function, "", priority, "", capturable=plain, precompilable=plain)


def _triton(op: str, folder: str, supports: str = "supports") -> OpBackend:
    module = f"kinfolk_kernels.{folder}.triton_backend"
    function, can = f"{module}:{op}", f"{module}:{supports}"
    return OpBackend(op, "triton", function, can, GPU, "cuda", capturable=True, precompilable=True)


OP_BACKENDS: tuple[OpBackend, ...] = (
    _triton("act_and_mul", "act_and_mul"),
    _triton("embedding", "embedding"),
    _backend("linear", "linear", "torch", CPU),
    _triton("linear", "linear"),
    _triton("softcap", "softcap"),
    _backend("rms_norm", "rms_norm", "torch", CPU),
    _triton("rms_norm", "rms_norm"),
    _backend("add_rms_norm", "rms_norm", "torch", CPU),
    _triton("add_rms_norm", "rms_norm", "supports_add"),
    _backend("gated_rms_norm", "rms_norm", "torch", CPU),
    _triton("gated_rms_norm", "rms_norm", "supports_gated"),
    _backend("route", "route", "torch", CPU),
    _triton("route", "route"),
    _backend("experts", "experts", "torch", CPU),
    _triton("experts", "experts"),
    _backend("gated_attention", "paged_attention", "reference", REFERENCE),
    _backend("gated_attention", "paged_attention", "torch", CPU),
    _triton("gated_attention", "paged_attention"),
    _backend("qk_rope_write", "qk_rope_write", "reference", REFERENCE),
    _triton("qk_rope_write", "qk_rope_write"),
    _backend("causal_conv", "causal_conv", "reference", REFERENCE),
    _backend("causal_conv", "causal_conv", "torch", CPU),
    _triton("causal_conv", "causal_conv"),
    _backend("delta_inputs", "causal_conv", "reference", REFERENCE),
    _backend("delta_inputs", "causal_conv", "torch", CPU),
    _triton("delta_inputs", "causal_conv", "supports_inputs"),
    _backend("causal_conv_commit", "causal_conv", "reference", REFERENCE),
    _backend("causal_conv_commit", "causal_conv", "torch", CPU),
    _triton("causal_conv_commit", "causal_conv", "supports_commit"),
    _backend("gated_delta", "gated_delta", "reference", REFERENCE),
    _backend("gated_delta", "gated_delta", "torch", CPU),
    _triton("gated_delta", "gated_delta"),
    _backend("gated_delta_commit", "gated_delta", "reference", REFERENCE),
    _backend("gated_delta_commit", "gated_delta", "torch", CPU),
    _triton("gated_delta_commit", "gated_delta", "supports_commit"),
    _triton("sample", "sample"),
    _triton("accept_drafts", "accept_drafts"),
    _triton("pack_outputs", "pack_outputs"),
)
