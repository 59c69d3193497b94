"""Every tensor of the reference cases changes the logits, and experts may lie in any bay."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
import torch

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.file import GGUFFile
from kinfolk.plans import Placement
from kinfolk.testing.checks.numbers import placed
from kinfolk.testing.driver import Driver

BOUND = 2e-4
OPTIONAL = {
    "gemma4": {"attn_v.weight", "layer_output_scale.weight"},
    "gemma4moe": {"ffn_down_exps.scale", "layer_output_scale.weight"},
}
"""What files of a case's architecture may lack besides the output matrix."""


@pytest.fixture
def logits(case, load, reference):
    """``logits(path)``: of the tokens of the reference case."""

    return lambda path: logits_of(load(path), reference(case)[0])


def logits_of(loaded, tokens):
    drive = Driver(loaded)
    lease = drive.open()
    return drive.feed({lease: tokens})[lease]


@pytest.fixture
def kinds(case, cases):
    """A tensor of each kind, of the last layer but one: the norm after the last layer cancels a
    scale of that layer as a whole."""
    with GGUFFile.open(cases / f"{case}.gguf") as file:
        names = list(file.inventory)
    layers = sorted({int(name.split(".")[1]) for name in names if name.startswith("blk.")})
    order = [*layers[-2::-1], layers[-1]]
    names.sort(key=lambda n: order.index(int(n.split(".")[1])) if n.startswith("blk.") else -1)
    found = {}
    for name in names:
        found.setdefault(name.split(".", 2)[-1] if name.startswith("blk.") else name, name)
    return tuple(found.values())


def test_a_copy_in_float32_is_the_same_model(case, variant, logits, reference, row_error, caplog):
    with caplog.at_level(logging.WARNING):
        assert row_error(logits(variant(case)), reference(case)[1]) <= BOUND
    assert not caplog.records


def test_every_tensor_counts(case, variant, logits, kinds, row_error):
    plain = logits(variant(case))
    for name in kinds:

        def change(tensors, name=name):
            # Not a common factor, which many norms would take out again.
            array = tensors[name]
            tensors[name] = array * np.linspace(0.5, 1.6, array.size).reshape(array.shape)

        assert row_error(logits(variant(case, change)), plain) > BOUND, name


def test_a_tensor_that_is_missing_is_named(case, variant, load, kinds):
    required = [name for name in kinds if name.split(".", 2)[-1] not in OPTIONAL.get(case, ())]
    for name in required:
        if name != "output.weight":
            path = variant(case, lambda tensors, name=name: tensors.pop(name))
            with pytest.raises(ModelFormatError, match=name.replace(".", r"\.")):
                load(path)


def test_a_tensor_of_a_wrong_shape_is_named(case, variant, load, kinds):
    for name in kinds:

        def stretch(tensors, name=name):
            tensors[name] = np.concatenate((tensors[name], tensors[name]))

        with pytest.raises(ModelFormatError, match=name.split(".", 2)[-1].replace(".", r"\.")):
            load(variant(case, stretch))


def test_experts_may_lie_in_any_bays(case, variant, load, reference):
    """Where an expert lies changes no bit."""
    loaded, tokens, rng = load(variant(case)), reference(case)[0], random.Random(1)
    bays = tuple(tuple(rng.sample(range(n), n)) for n in loaded.config.experts)
    shuffled = placed(loaded, Placement(bays))
    assert torch.equal(logits_of(shuffled, tokens), logits_of(loaded, tokens))
