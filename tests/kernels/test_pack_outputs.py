"""The packed outputs of a step, number by number."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.pack_outputs.op import PackOutputsArguments, pack_outputs

CPU = PackOutputsArguments(torch.device("cpu"))


def test_numbers_stand_where_they_are_looked_for():
    hidden = torch.zeros(5, 3)
    hidden[1, 2] = torch.nan  # the last row of no sequence
    finite = torch.tensor([True, True, False, True])
    rows = torch.tensor([[0, 1], [2, -1], [3, -1]])
    kept, following = torch.tensor([2, 1, 1]), torch.tensor([50, 60, 70])
    path = torch.tensor([[0, 1], [0, -1], [0, -1]])
    spans = torch.tensor([[0, 1, 5, 0], [2, 1, 6, 0], [3, 2, 7, 0]], dtype=torch.int32)
    tokens = torch.tensor([[4, 5], [6, 7], [8, 9]])
    found = pack_outputs(CPU, hidden, spans, finite, rows, tokens, kept, following, path)
    numbers = [1, 1, 1, 1, 0, 1, 2, 1, 1, 50, 60, 70, 0, 1, 0, -1, 0, -1]
    assert found.tolist() == [*numbers, 5, 50, 60, -1, 70, -1]


def test_emitted_tokens_follow_the_path_through_a_tree():
    tokens, path = torch.tensor([[9, 11, 12, 13, 14]]), torch.tensor([[0, 2, 4, -1, -1]])
    spans = torch.tensor([[0, 5, 1, 1]], dtype=torch.int32)
    finite, rows = torch.ones(5, dtype=torch.bool), torch.arange(5)[None]
    kept, following = torch.tensor([3]), torch.tensor([77])
    found = pack_outputs(CPU, torch.ones(5, 2), spans, finite, rows, tokens, kept, following, path)
    assert found[-5:].tolist() == [12, 14, 77, -1, -1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_step_without_sampled_sequences_tells_whose_state_is_sound(bad):
    hidden = torch.ones(4, 6)
    hidden[3, 1] = bad
    none = torch.zeros(0, dtype=torch.int64)
    spans = torch.tensor([[0, 2, 5, 0], [2, 2, 6, 0]], dtype=torch.int32)
    found = pack_outputs(
        CPU, hidden, spans, none.bool(), none[:, None], none[:, None], none, none, none[:, None]
    )
    assert found.tolist() == [1, 0]
