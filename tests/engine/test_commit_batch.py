"""Layers that ask for a commit together."""

from __future__ import annotations

import torch

from kinfolk.model_api import CommitBatch


def test_layers_with_an_equal_key_share_a_call():
    kept = CommitBatch(torch.zeros(1, 2), torch.ones(1), torch.zeros(1))
    calls = []

    def op(name):
        return lambda layers, *rows: calls.append((name, layers, rows))

    kept.together(("wide", 4), op("first"), 1)
    kept.together("other", op("other"), 2)
    kept.together(("wide", 4), op("of an equal layer"), 3)
    assert not calls
    kept.finish()
    rows = (kept.path, kept.n_keep, kept.slot)
    assert calls == [("first", [1, 3], rows), ("other", [2], rows)]
    kept.finish()
    assert len(calls) == 2
