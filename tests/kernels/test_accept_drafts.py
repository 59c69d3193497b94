"""The accepted paths of drafts, against a plain search."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.accept_drafts.op import AcceptDraftsArguments, accept_drafts

CPU = AcceptDraftsArguments(torch.device("cpu"))


def search(chosen, tokens, parents, budget):
    """One sequence by hand: from row to the first child with the wanted token."""
    path = [0]
    while len(path) < budget:
        children = [
            row
            for row in range(1, len(tokens))
            if parents[row] == path[-1] and tokens[row] == chosen[path[-1]]
        ]
        if not children:
            break
        path.append(children[0])
    return path + [-1] * (len(tokens) - len(path)), len(path), chosen[path[-1]]


@pytest.mark.parametrize("most_rows", [1, 2, 4, 13, 16, 64])
@pytest.mark.parametrize("seed", range(6))
def test_is_the_search(drafted_sequences, seed, most_rows):
    given = drafted_sequences(seed, most_rows)
    path, n_keep, following = accept_drafts(CPU, *given)
    for at, expected in enumerate(map(search, *(x.tolist() for x in given))):
        assert (path[at].tolist(), int(n_keep[at]), int(following[at])) == expected


def test_a_chain_that_was_wanted_is_kept_whole():
    tokens = torch.arange(16)[None]
    path, n_keep, following = accept_drafts(CPU, tokens + 1, tokens, tokens - 1, torch.tensor([16]))
    assert torch.equal(path, tokens)
    assert (int(n_keep), int(following)) == (16, 16)
