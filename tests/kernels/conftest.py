"""Triton exists for Linux only; elsewhere its tests are not collected."""

from __future__ import annotations

from importlib.util import find_spec

from digest_inputs import assert_same_digest, query_steps, scored_chunks, stored_keys
from expert_layers import layer, planes_stack
from kernel_inputs import (
    assert_near,
    candidates,
    drafted_sequences,
    memories,
    numbers,
    placements,
    random_planes,
    steps,
)

__all__ = [
    "assert_near",
    "assert_same_digest",
    "candidates",
    "drafted_sequences",
    "layer",
    "memories",
    "numbers",
    "placements",
    "planes_stack",
    "query_steps",
    "random_planes",
    "scored_chunks",
    "steps",
    "stored_keys",
]

NEED_TRITON = [
    "test_dependent_launches.py",
    "test_far_launches.py",
    "test_gemm_f16.py",
    "test_gemm_mma.py",
    "test_gemm_mma_int8.py",
    "test_gemv.py",
    "test_interpreter_tier.py",
    "test_mma_groups.py",
]
collect_ignore = [] if find_spec("triton") else NEED_TRITON
collect_ignore_glob = [] if find_spec("triton") else ["*_triton.py", "*_aot.py"]
