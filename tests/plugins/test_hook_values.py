"""What a model hook may answer, and what is said about anything else."""

import pytest
import torch

from kinfolk.hookcheck import MODEL
from kinfolk.hookvalues import CHECKS, check_kept, check_state_plan, check_step_fn
from kinfolk.plans import (
    Codec,
    Paged,
    Recurrent,
    RecurrentTensor,
    Section,
    Shared,
    StatePlan,
)
from kinfolk.spec.verify import Kept

GOOD = Paged((Section("k", 2, 8), Section("v", 2, 8)))


def test_every_model_hook_has_a_check():
    assert set(CHECKS) == set(MODEL)


def test_a_plan_of_every_kind_of_layer_is_good():
    plan = StatePlan(
        (
            GOOD,
            Recurrent((RecurrentTensor("s", (4, 8, 8)), RecurrentTensor("conv", (3, 16), "bf16"))),
            Shared(0),
            Paged((Section("k", 1, 4, Codec("q8_0", "hadamard")),), window=512),
        )
    )
    assert check_state_plan(plan) == ""


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Paged(()), "has no sections"),
        (Paged([Section("k", 1, 8)]), "has no sections"),
        (Paged((Section("k", 0, 8),)), "section 'k' of 0 heads and dim 8; both must be positive"),
        (Paged((Section("k", 1, 8.0),)), "section 'k' of 1 heads and dim 8.0"),
        (Paged((Section("k", 1, 8), Section("k", 1, 8))), "has two sections 'k'"),
        (Paged((Section("k", 1, 8, Codec("int3")),)), "'k' with the unknown codec Codec(format="),
        (Paged((Section("k", 1, 8, "bf16"),)), "'k' with the unknown codec 'bf16'"),
        (Paged(("k",)), "has 'k' among its sections"),
        (Paged(GOOD.sections, window=0), "has window 0; it must be a positive int or None"),
        (Paged(GOOD.sections, window=-1), "has window -1"),
        (Paged(GOOD.sections, window=True), "has window True"),
        (Recurrent(()), "has no tensors"),
        (Recurrent((RecurrentTensor("s", [4]),)), "has tensor 's' of shape [4]"),
        (Recurrent((RecurrentTensor("s", (4, 0)),)), "has tensor 's' of shape (4, 0)"),
        (Recurrent((RecurrentTensor("s", (4,), "f8"),)), "'s' of the unknown dtype 'f8'"),
        (Recurrent((RecurrentTensor("s", (4,)),) * 2), "has two tensors 's'"),
        (Recurrent((4,)), "has 4 among its tensors"),
        (None, "is None; it must be Paged, Recurrent or Shared"),
    ],
)
def test_a_layer_that_cannot_be_allocated_is_named_by_its_number(layer, words):
    problem = check_state_plan(StatePlan((GOOD, layer)))
    assert problem.startswith("has a layer 1 that ")
    assert words in problem


def test_a_plan_must_be_a_plan_with_layers():
    assert check_state_plan([GOOD]) == "is no kinfolk.plans.StatePlan"
    assert "has no layers" in check_state_plan(StatePlan(()))


def test_a_step_function_must_be_callable():
    assert check_step_fn(len) == ""
    assert "cannot be called" in check_step_fn(7)


def test_what_was_kept_may_be_empty_or_wide():
    for lanes, width in ((1, 1), (3, 5), (0, 4)):
        numbers = torch.zeros(lanes, dtype=torch.int64)
        paths = torch.zeros(lanes, width, dtype=torch.int64)
        assert check_kept(Kept(paths, numbers, numbers)) == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"path": torch.zeros(2, 3)}, "has path of torch.float32; it must be an int64 tensor"),
        ({"path": [[0]]}, "has path of list; it must be an int64 tensor"),
        ({"path": torch.zeros(2, dtype=torch.int64)}, "has path of shape [2]; it must have 2 dim"),
        ({"n_keep": torch.ones(2, dtype=torch.int32)}, "has n_keep of torch.int32"),
        ({"n_keep": torch.ones(2, 1, dtype=torch.int64)}, "has n_keep of shape [2, 1]; it must"),
        ({"next": None}, "has next of NoneType"),
        ({"next": torch.zeros(3, dtype=torch.int64)}, "has path [2, 3], n_keep [2] and next [3]"),
        (
            {"next": torch.zeros(2, dtype=torch.int64, device="meta")},
            "has its tensors on cpu and meta; they must be on one device",
        ),
    ],
)
def test_tensors_of_another_type_or_shape_are_refused(fields, words):
    good = {
        "path": torch.zeros(2, 3, dtype=torch.int64),
        "n_keep": torch.ones(2, dtype=torch.int64),
        "next": torch.zeros(2, dtype=torch.int64),
    }
    assert words in check_kept(Kept(**(good | fields)))


def test_the_check_reads_nothing_from_the_device():
    """A tensor without numbers passes: only type and shape are looked at."""
    meta = torch.zeros(2, dtype=torch.int64, device="meta")
    assert check_kept(Kept(torch.zeros(2, 3, dtype=torch.int64, device="meta"), meta, meta)) == ""
