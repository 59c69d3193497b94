"""``fetch`` in torch: arrays of experts and bays, and one copy of all records that come in."""

from __future__ import annotations

import torch

from kinfolk_kernels.experts.op import real_rows
from kinfolk_kernels.fetch.op import FetchArguments


def fetch(arguments: FetchArguments, ids: torch.Tensor) -> None:
    """See :class:`FetchArguments`."""
    bays, score, bay_of = arguments.bays, arguments.score, arguments.bay_of_expert
    real = ids[: real_rows(arguments.rows, ids.shape[0])].flatten()
    uses = real.bincount(minlength=arguments.count)
    used = uses > 0
    arguments.uses.add_(uses)
    score.mul_(arguments.decay).add_(used.to(score.dtype))
    hits = int((used & (bay_of >= 0) & (bay_of < bays)).sum())
    missed = (used & (bay_of >= bays)).nonzero().flatten()
    missed = missed[score[missed].argsort(descending=True, stable=True)]
    to, leaving = _free(arguments, used)
    fetched = min(len(missed), len(to))
    coming, to, leaving = missed[:fetched], to[:fetched], leaving[:fetched]
    if fetched:
        near, far = arguments.near, arguments.far
        near[to] = far[coming.to(far.device)].to(near.device)
        gone = leaving[leaving >= 0]
        bay_of[gone] = bays + gone
        bay_of[coming] = to
        arguments.expert_of_bay[to] = coming.to(torch.int32)
    counts = (hits, fetched, len(missed) - fetched)
    arguments.traffic.add_(torch.tensor(counts, device=arguments.traffic.device))


def _free(arguments: FetchArguments, used: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bays that may change, in the order in which they are taken, and the expert in each, -1 if
    it is empty."""
    owner = arguments.expert_of_bay.long()
    empty = owner < 0
    may = empty | ~used[owner.clamp(min=0)]
    may[: arguments.pinned] = False
    to = may.nonzero().flatten()
    owner, empty = owner[to], empty[to]
    by_id = owner.argsort(stable=True)
    rank = torch.where(empty, -1.0, arguments.score[owner.clamp(min=0)])
    order = by_id[rank[by_id].argsort(stable=True)]
    return to[order], owner[order]
