"""The allowed answers of a model hook, and the message about any other answer."""

import re

import pytest
import torch

from kinfolk.hookcheck import MODEL
from kinfolk.hooks import ANSWERS
from kinfolk.plans import (
    Codec,
    Paged,
    Placement,
    PoolRule,
    Recurrent,
    RecurrentTensor,
    Section,
    Shared,
    SlotMapping,
    StatePlan,
)
from kinfolk.verify_api import Kept

GOOD = Paged((Section("k", 2, 8), Section("v", 2, 8)))


def test_every_model_hook_has_an_answer():
    assert set(ANSWERS) == set(MODEL)


def test_a_plan_of_every_kind_of_layer_is_good():
    layers = (
        GOOD,
        Recurrent((RecurrentTensor("s", (4, 8, 8)), RecurrentTensor("conv", (3, 16), "bf16"))),
        Shared(0),
        Paged((Section("k", 1, 4, Codec("q8_0", "hadamard")),), window=512),
    )
    assert StatePlan(layers).layers == layers


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Paged(()), "has no sections"),
        (lambda: Paged([Section("k", 1, 8)]), "Paged.sections: Input should be a valid tuple"),
        (lambda: Section("k", 0, 8), "section 'k' has 0 heads of dim 8; both must be positive"),
        (lambda: Section("k", 1, 8.5), "Section.dim: Input should be a valid integer"),
        (lambda: Paged((Section("k", 1, 8), Section("k", 1, 8))), "has two sections 'k'"),
        (lambda: Codec("int3"), "Codec.format: Input should be 'f32', 'f16', 'bf16'"),
        (lambda: Codec("bf16", "spin"), "Codec.rotation: Input should be 'none' or 'hadamard'"),
        (lambda: Section("k", 1, 8, "bf16"), "Section.codec: Input should be an instance of Codec"),
        (lambda: Paged(("k",)), "Paged.sections.0: Input should be an instance of Section"),
        (lambda: Paged(GOOD.sections, window=0), "the window is 0; it must be positive, or None"),
        (lambda: Paged(GOOD.sections, window=-1), "the window is -1"),
        (lambda: Paged(GOOD.sections, window=True), "Paged.window: Input should be a valid int"),
        (lambda: Recurrent(()), "has no tensors"),
        (lambda: RecurrentTensor("s", [4]), "RecurrentTensor.shape: Input should be a valid tuple"),
        (lambda: RecurrentTensor("s", (4, 0)), "tensor 's' has the shape (4, 0)"),
        (lambda: RecurrentTensor("s", (4,), "f8"), "RecurrentTensor.dtype: Input should be 'f32'"),
        (lambda: Recurrent((RecurrentTensor("s", (4,)),) * 2), "has two tensors 's'"),
        (lambda: Recurrent((4,)), "Recurrent.tensors.0: Input should be an instance"),
        (lambda: StatePlan((GOOD, None)), "StatePlan.layers.1.Paged: Input should be an instance"),
        (lambda: StatePlan([GOOD]), "StatePlan.layers: Input should be a valid tuple"),
        (lambda: StatePlan(()), "the state plan has no layers"),
        (lambda: StatePlan((Shared(0),)), "layer 0 shares the state of layer 0"),
        (lambda: PoolRule(sink=-1), "keeps the first -1 and last 4 chunks"),
        (lambda: PoolRule(tail=-1), "keeps the first 1 and last -1 chunks"),
        (lambda: PoolRule(tail=1.5), "PoolRule.tail: Input should be a valid integer"),
        (lambda: SlotMapping((None,)), "SlotMapping.rules.0: Input should be an instance"),
        (lambda: Placement(([0, 1],)), "Placement.bays.0: Input should be a valid tuple"),
        (lambda: Placement(((0, "1"),)), "Placement.bays.0.1: Input should be a valid integer"),
    ],
)
def test_what_cannot_be_allocated_cannot_be_built(build, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        build()


def test_what_was_kept_may_be_empty_or_wide():
    for lanes, width in ((1, 1), (3, 5), (0, 4)):
        numbers = torch.zeros(lanes, dtype=torch.int64)
        paths = torch.zeros(lanes, width, dtype=torch.int64)
        assert Kept(paths, numbers, numbers).path is paths


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"path": torch.zeros(2, 3)}, "Kept.path is of torch.float32; it must be an int64 tensor"),
        ({"path": [[0]]}, "Kept.path is of list; it must be an int64 tensor"),
        ({"path": torch.zeros(2, dtype=torch.int64)}, "Kept.path is [2]; it must have 2 dim"),
        ({"n_keep": torch.ones(2, dtype=torch.int32)}, "Kept.n_keep is of torch.int32"),
        ({"n_keep": torch.ones(2, 1, dtype=torch.int64)}, "Kept.n_keep is [2, 1]; it must"),
        ({"next": None}, "Kept.next is of NoneType"),
        ({"next": torch.zeros(3, dtype=torch.int64)}, "{'path': 2, 'n_keep': 2, 'next': 3}"),
        (
            {"next": torch.zeros(2, dtype=torch.int64, device="meta")},
            "the tensors of Kept are on cpu and meta",
        ),
    ],
)
def test_tensors_of_another_type_or_shape_are_refused(fields, words):
    good = {
        "path": torch.zeros(2, 3, dtype=torch.int64),
        "n_keep": torch.ones(2, dtype=torch.int64),
        "next": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(ValueError, match=re.escape(words)):
        Kept(**(good | fields))


def test_the_check_reads_nothing_from_the_device():
    """A tensor without numbers passes: only type and shape are looked at."""
    meta = torch.zeros(2, dtype=torch.int64, device="meta")
    path = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    assert Kept(path, meta, meta).path is path
