"""Sampling, verification and commit of a step, on the device.

The host reads no tensor here, so all of it can be captured in a graph.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kinfolk.engine.drafting import Drafting
from kinfolk.engine.input_buffers import SampledSequences
from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.outputs import LogitsOutputs, pack_sampled
from kinfolk.model_api import CommitBatch, StepBatch
from kinfolk.spec.verify import NO_ROW
from kinfolk.state.state import State
from kinfolk.types import DUMMY
from kinfolk.verify_api import AcceptDrafts, Draft, Kept, RowSampling, VerifyStep


def sample_and_commit(
    loaded: LoadedModel,
    state: State,
    outputs: LogitsOutputs,
    sampled: SampledSequences,
    sampling: RowSampling,
    *,
    drafts: bool,
    drafting: Drafting | None = None,
) -> torch.Tensor:
    """Choose tokens, and advance drafted sequences along the rows that are kept. Returns the result
    of the op ``pack_outputs``, int64. ``drafts``: whether the step has drafted rows."""
    batch, logits = outputs.batch, outputs.logits
    step, draft = _drafts(batch, sampled, logits, loaded.step_ops.accept_drafts)
    if drafting is not None and sampled.trees:
        # The host does not know at which depth a proposed row stands.
        position = batch.positions[batch.logit_rows[: logits.shape[0]]] + 1
        sampling = replace(sampling, position=position)
    if drafts and drafting is not None and drafting.loaded.planted is not None:
        draft = drafting.loaded.planted.over(draft, step.rows, sampling)
    kept = loaded.hooks.verify(step, draft, sampling)
    if drafts:
        commit = commit_batch(sampled, kept.path, kept.n_keep)
        loaded.model.commit(outputs.forward.trace, commit, state)
        commit.finish()
        if drafting is not None:
            drafting.commit(outputs.draft_trace, commit)
        if sampled.trees:
            commit_tree_rows(state, batch, sampled, commit)
    if sampling.edits is not None:
        sampling.edits.note(emitted_tokens(draft, kept))
    if drafting is not None:
        drafting.note(batch, sampled, kept)
    return pack_sampled(loaded, outputs, step.rows, draft.tokens, kept)


def emitted_tokens(draft: Draft, kept: Kept) -> torch.Tensor:
    """The tokens that each of L sequences emits, int64 [L, T]: -1 where it emits fewer than T."""
    drafted = draft.tokens.gather(1, kept.path.clamp_min(0))
    return torch.cat([torch.where(kept.path < 0, -1, drafted)[:, 1:], kept.next[:, None]], 1)


def commit_batch(
    sampled: SampledSequences, path: torch.Tensor, n_keep: torch.Tensor
) -> CommitBatch:
    """Kept rows as rows of the step; ``path`` [S, T] has indices within each sampled sequence,
    padded with -1. Sequences without drafts keep no rows here: the forward advanced their state."""
    drafted = sampled.drafted != 0
    rows = torch.where((path < 0) | ~drafted[:, None], -1, sampled.row[:, None] + path)
    return CommitBatch(rows, torch.where(drafted, n_keep, 0), sampled.slot)


def commit_tree_rows(
    state: State, batch: StepBatch, sampled: SampledSequences, kept: CommitBatch
) -> None:
    """Copy accepted rows from the arena to their blocks; padding goes to the dummy block."""
    arena = batch.arena_row[kept.path.clamp_min(0)]
    moved = (kept.path >= 0) & (arena >= 0)
    depth = torch.arange(kept.path.shape[1], device=arena.device)
    at = (sampled.row[:, None] + depth).clamp_max(batch.tokens.shape[0] - 1)
    targets = torch.where(moved, sampled.targets[:, at], DUMMY)
    state.commit_tree(torch.where(moved, arena, 0).flatten(), targets.flatten(1))


def _drafts(
    batch: StepBatch,
    sampled: SampledSequences,
    logits: torch.Tensor,
    accept_drafts: AcceptDrafts,
) -> tuple[VerifyStep, Draft]:
    """The rows of each sampled sequence side by side, [S, T]."""
    if sampled.single_rows:
        own = slice(sampled.logit.shape[0])
        draft = Draft(
            batch.tokens[own, None], batch.parent_row[own, None], sampled.budget, accept_drafts
        )
        return VerifyStep(logits, sampled.logit[:, None]), draft
    place = torch.arange(sampled.width, device=logits.device)
    inside = place < sampled.count[:, None]
    row = torch.where(inside, sampled.row[:, None] + place, 0)
    above = batch.parent_row[row]
    parents = torch.where(above < 0, -1, above - sampled.row[:, None])
    return (
        VerifyStep(logits, torch.where(inside, sampled.logit[:, None] + place, -1)),
        Draft(
            torch.where(inside, batch.tokens[row], 0),
            torch.where(inside, parents, NO_ROW),
            sampled.budget,
            accept_drafts,
        ),
    )
