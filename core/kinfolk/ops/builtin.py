"""The op back ends that kinfolk ships, as descriptors; importing this does not load torch.

References are not listed here: every op has its own.
"""

from __future__ import annotations

from kinfolk.descriptors import OpBackend

CPU, GPU = 10, 20
"""Priorities: above the references (0), and GPU kernels first."""


def _torch(op: str, folder: str, *, capturable: bool = False) -> OpBackend:
    """``capturable``: plain tensor arithmetic that reads no tensor on the host."""
    function = f"kinfolk_kernels.{folder}.torch_backend:{op}"
    return OpBackend(
        op, "torch", function, "", CPU, "", capturable=capturable, precompilable=capturable
    )


def _triton(op: str, folder: str, supports: str = "supports") -> OpBackend:
    module = f"kinfolk_kernels.{folder}.triton_backend"
    function, can = f"{module}:{op}", f"{module}:{supports}"
    return OpBackend(op, "triton", function, can, GPU, "cuda", capturable=True, precompilable=True)


OP_BACKENDS: tuple[OpBackend, ...] = (
    _triton("accept_drafts", "accept_drafts"),
    _triton("act_and_mul", "act_and_mul"),
    _torch("add_rms_norm", "rms_norm", capturable=True),
    _triton("add_rms_norm", "rms_norm", "supports_add"),
    _torch("causal_conv_commit", "causal_conv"),
    _triton("causal_conv_commit", "causal_conv", "supports_commit"),
    _triton("chunk_digest", "chunk_digest"),
    _triton("chunk_scores", "chunk_scores"),
    _torch("delta_inputs", "causal_conv"),
    _triton("delta_inputs", "causal_conv", "supports_inputs"),
    _torch("draft_trees", "draft_trees"),
    _triton("draft_trees", "draft_trees"),
    _triton("embedding", "embedding"),
    _torch("experts", "experts"),
    _triton("experts", "experts"),
    _torch("fetch", "fetch"),
    _triton("fetch", "fetch"),
    _triton("fetch_experts", "fetch_experts"),
    _triton("flash_prefill", "flash_prefill"),
    _torch("gated_attention", "paged_attention"),
    _triton("gated_attention", "paged_attention"),
    _torch("gated_delta", "gated_delta"),
    _triton("gated_delta", "gated_delta"),
    _torch("gated_delta_commit", "gated_delta"),
    _triton("gated_delta_commit", "gated_delta"),
    _torch("gated_rms_norm", "rms_norm", capturable=True),
    _triton("gated_rms_norm", "rms_norm", "supports_gated"),
    _torch("land", "land"),
    _triton("land", "land"),
    _torch("linear", "linear", capturable=True),
    _triton("linear", "linear"),
    _triton("pack_outputs", "pack_outputs"),
    _triton("place_drafts", "place_drafts"),
    _triton("qk_rope_write", "qk_rope_write"),
    _torch("rms_norm", "rms_norm", capturable=True),
    _triton("rms_norm", "rms_norm"),
    _torch("route", "route"),
    _triton("route", "route"),
    _triton("sample", "sample"),
    _triton("softcap", "softcap"),
    _triton("write_queries", "write_queries"),
)
