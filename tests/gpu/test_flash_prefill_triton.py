"""Sparse attention of prompts on the GPU, against the reference, and a scorer against the CPU's."""

from __future__ import annotations

import pytest
import torch
from sparse_inputs import sparse_case

from kinfolk.engine.prompt_scorer import PromptScorer
from kinfolk.registry import Registry
from kinfolk.sched.prompt_scoring import ScoringRequest
from kinfolk.settings import load_settings
from kinfolk_kernels.flash_prefill import triton_backend as kernel
from kinfolk_kernels.flash_prefill.op import (
    FlashPrefillArguments,
    block_means,
    flash_prefill,
    kept_blocks,
)
from kinfolk_kernels.stored_kind import StoredKind

CPU, GPU = torch.device("cpu"), torch.device("cuda")

BOUND = {torch.float32: 4e-4, torch.float16: 4e-3, torch.bfloat16: 4e-2}
"""Of a weighted mean of normal numbers: shares are rounded before they are multiplied. Scores reach
155 here, of which float32 keeps 2^-17: the kernel was off by 1.4e-4, and the reference by 2e-5."""

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def arguments_of(case, dtype, device):
    keys, values = (StoredKind.of(pool) for pool in case.pools)
    return FlashPrefillArguments(case.q.shape[1], keys, values, 0.125, dtype, device)


def on_gpu(case):
    data = case.pools[0]._base.cuda()
    return case.q.cuda(), (data[:, 0], data[:, 1]), case.blocks.cuda()


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(
    ("length", "heads", "kv_heads", "dim"),
    [(1, 1, 1, 64), (1409, 4, 2, 64), (1409, 4, 2, 128), (1409, 6, 1, 256), (2048, 2, 1, 128)],
)
def test_equals_the_reference(length, heads, kv_heads, dim, dtype):
    case = sparse_case(length, heads, kv_heads, dim, seed=2, dtype=dtype)
    q, pools, blocks = on_gpu(case)
    arguments = arguments_of(case, dtype, GPU)
    assert kernel.supports(arguments)
    found = kernel.flash_prefill(arguments, q, pools, blocks, 0, length).cpu()
    # Where a block is as good as the bar, rounding decides: compare with the blocks that were kept.
    scratch = kernel.SparseScratch.make(q, kv_heads, dim, 0)
    for launch in kernel.launches(arguments, q, pools, blocks, 0, length, scratch):
        launch.run()
    expected = flash_prefill(
        arguments_of(case, dtype, CPU), case.q, case.pools, case.blocks, 0, length
    )
    kept = kept_blocks(case.q, block_means(case.k).to(dtype), 0, length, 0.125)
    for m, of_block in enumerate(kept):
        for head, numbers in enumerate(of_block):
            count = int(scratch.kept_count[m, head])
            if scratch.kept[m, head, :count].tolist() != numbers:
                rows = slice(m * 128, (m + 1) * 128)
                found[rows, head] = expected[rows, head]
    bound = BOUND[dtype]
    assert torch.allclose(found.float(), expected.float(), rtol=bound, atol=bound)


@pytest.mark.parametrize(("start", "stop"), [(0, 1024), (1024, 2040), (2032, 2040)])
def test_slices_equal_the_reference(start, stop):
    case = sparse_case(2040, 2, 1, 128, seed=4)
    q, pools, blocks = on_gpu(case)
    used = -(-stop // 64)
    found = kernel.flash_prefill(
        arguments_of(case, torch.float32, GPU), q[start:stop], pools, blocks[:used], start, 2040
    )
    expected = flash_prefill(
        arguments_of(case, torch.float32, CPU),
        case.q[start:stop],
        case.pools,
        case.blocks[:used],
        start,
        2040,
    )
    assert torch.allclose(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def scores_of(path, device, tokens):
    settings = load_settings(device=device, dtype="f32", weights="dense")
    scorer = PromptScorer.open(path, settings, Registry.discover(settings))
    books = scorer.books()
    books.submit(ScoringRequest("text", tuple(tokens)))
    while (planned := books.plan()) is not None:
        books.commit(scorer.launch(planned).collect())
    (event,) = books.take_events()
    scorer.close()
    assert event.error is None, event.error
    return torch.from_numpy(event.scores)


@pytest.mark.parametrize("name", ["qwen35", "gemma4", "laguna"])
def test_a_text_gets_the_scores_that_it_gets_on_the_cpu(cases, name):
    """Of 600 tokens, all blocks of keys are near, first or last ones, so attention is dense."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(10, 700, (600,), generator=generator).tolist()
    path = cases / f"{name}.gguf"
    found, expected = scores_of(path, "cuda", tokens), scores_of(path, "cpu", tokens)
    assert torch.allclose(found, expected, rtol=1e-2, atol=1e-5)
