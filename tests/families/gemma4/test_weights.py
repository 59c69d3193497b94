"""The variants of files: every tensor changes the logits, or is ignored for a stated reason."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.file import GGUFFile
from kinfolk.testing.driver import Driver
from kinfolk_gemma4.config import read_config
from kinfolk_gemma4.weights import weight_plan

CASES = ("gemma4", "gemma4moe")
BOUND = 2e-4


@pytest.fixture
def logits(load, reference):
    """``logits(path)``: of the tokens of the reference case, which both cases share."""

    def run(path):
        drive = Driver(load(path))
        lease = drive.open()
        return drive.feed({lease: reference("gemma4")[0]})[lease]

    return run


def layers_of(tensors, local):
    return [name for name in tensors if name.endswith(f".{local}")]


@pytest.mark.parametrize("case", CASES)
def test_a_copy_in_other_types_is_the_same_model(variant, logits, reference, row_error, case):
    assert row_error(logits(variant(case)), reference(case)[1]) <= BOUND


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_of_the_file_counts(variant, logits, cases, row_error, case):
    plain = logits(variant(case))
    with GGUFFile.open(cases / f"{case}.gguf") as file:
        names = list(file.inventory)
    # One tensor of each kind: the last layer's scale would vanish in the norm after it.
    kinds = {
        name.split(".", 2)[-1] if name.startswith("blk.") else name: name
        for name in reversed(names)
    }
    assert len(kinds) == (6 + 14 + 3 if case == "gemma4" else 3 + 14 + 8)
    for name in kinds.values():

        def change(tensors, name=name):
            # Not a common factor, which many norms would take out again.
            tensors[name] = tensors[name] * np.linspace(0.7, 1.4, tensors[name].size).reshape(
                tensors[name].shape
            )

        assert row_error(logits(variant(case, change)), plain) > BOUND, name


def test_fused_attention_projections(variant, logits, reference, row_error):
    def fuse(tensors):
        for name in layers_of(tensors, "attn_q.weight"):
            parts = [name.replace("attn_q", f"attn_{part}") for part in "qkv"]
            if parts[2] in tensors:
                stack = [tensors.pop(part) for part in parts]
                tensors[name.replace("attn_q", "attn_qkv")] = np.concatenate(stack)

    path = variant("gemma4", fuse)
    with GGUFFile.open(path) as file:
        assert sum("attn_qkv" in name for name in file.inventory) == 4
    assert row_error(logits(path), reference("gemma4")[1]) <= BOUND


def test_split_gate_and_up_experts(variant, logits, reference, row_error):
    def split(tensors):
        for name in layers_of(tensors, "ffn_gate_up_exps.weight"):
            gate, up = np.split(tensors.pop(name), 2, axis=1)
            tensors[name.replace("gate_up", "gate")] = gate
            tensors[name.replace("gate_up", "up")] = up

    path = variant("gemma4moe", split)
    assert row_error(logits(path), reference("gemma4moe")[1]) <= BOUND


def test_an_output_matrix_of_its_own_is_used(variant, logits, row_error):
    def untie(tensors):
        tensors["output.weight"] = tensors["token_embd.weight"][::-1]

    tied, untied = logits(variant("gemma4")), logits(variant("gemma4", untie))
    assert row_error(untied, tied.flip(1)) <= BOUND


@pytest.mark.parametrize(
    ("case", "local"),
    [("gemma4", "layer_output_scale.weight"), ("gemma4moe", "ffn_down_exps.scale")],
)
def test_scales_that_are_missing_are_one(variant, logits, row_error, case, local):
    def ones(tensors):
        for name in layers_of(tensors, local):
            tensors[name] = np.ones_like(tensors[name])

    def without(tensors):
        for name in layers_of(tensors, local):
            del tensors[name]

    missing, stated = logits(variant(case, without)), logits(variant(case, ones))
    assert torch.equal(missing, stated)
    assert row_error(stated, logits(variant(case))) > 100 * BOUND


def test_unused_keys_of_layers_that_share_are_left_alone(variant, logits, load, caplog):
    def add(tensors):
        for layer, dim, heads in ((4, 32, 2), (5, 64, 2)):
            block = f"blk.{layer}."
            tensors[f"{block}attn_k.weight"] = np.full((heads * dim, 64), 0.3)
            tensors[f"{block}attn_v.weight"] = np.full((heads * dim, 64), 0.3)
            tensors[f"{block}attn_k_norm.weight"] = np.full(dim, 2.0)

    path = variant("gemma4", add)
    with caplog.at_level(logging.WARNING):
        found = logits(path)
    assert torch.equal(found, logits(variant("gemma4")))
    assert not caplog.records
    with GGUFFile.open(path) as file:
        plan = weight_plan(read_config(file.metadata), file.inventory)
        assert "reads the keys and values of another" in plan.ignored["blk.4.attn_v.weight"]
    assert load(path).plan.owner(5) == 3


def test_parts_for_other_senses_are_left_alone(variant, logits, caplog):
    def add(tensors):
        tensors["v.patch_embd.weight"] = np.ones((4, 4))
        tensors["mm.0.weight"] = np.ones((4, 4))

    path = variant("gemma4", add)
    with caplog.at_level(logging.WARNING):
        logits(path)
    assert not caplog.records


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("gemma4", "per_layer_token_embd.weight"),
        ("gemma4", "per_layer_model_proj.weight"),
        ("gemma4", "per_layer_proj_norm.weight"),
        ("gemma4", "blk.5.inp_gate.weight"),
        ("gemma4", "blk.0.post_norm.weight"),
        ("gemma4", "rope_freqs.weight"),
        ("gemma4", "blk.1.attn_v.weight"),
        ("gemma4", "blk.3.attn_k.weight"),
        ("gemma4moe", "blk.0.attn_v.weight"),
        ("gemma4moe", "blk.2.ffn_gate_inp.weight"),
        ("gemma4moe", "blk.2.ffn_gate_inp.scale"),
        ("gemma4moe", "blk.4.ffn_gate_up_exps.weight"),
        ("gemma4moe", "blk.4.pre_ffw_norm_2.weight"),
    ],
)
def test_a_tensor_that_is_missing_is_named(variant, load, case, name):
    path = variant(case, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelFormatError, match=name):
        load(path)


def test_some_full_layers_without_values_are_no_model(variant, load):
    """Either all full layers make values from keys or none does."""

    def add(tensors):
        tensors["blk.2.attn_v.weight"] = np.ones((64, 64))

    with pytest.raises(ModelFormatError, match=r"blk\.5\.attn_v\.weight"):
        load(variant("gemma4moe", add))


def test_experts_that_the_metadata_does_not_mention_are_refused(variant, load):
    def forget(keys):
        for name in ("expert_count", "expert_used_count", "expert_feed_forward_length"):
            del keys[f"gemma4.{name}"]

    with pytest.raises(ModelFormatError, match=r"ffn_gate_inp.*gemma4\.expert_count"):
        load(variant("gemma4moe", keys=forget))


def test_the_family_is_asked_which_experts_have_bays(variant, load, monkeypatch):
    from kinfolk.plans import Placement

    asked = []

    def all_in_order(stats, budget):
        asked.append((stats, budget))
        return Placement((tuple(range(12)),) * 6)

    monkeypatch.setattr("kinfolk_gemma4.hooks.place_by_frequency", all_in_order)
    load(variant("gemma4moe"))
    ((stats, budget),) = asked
    assert stats.layers == (12,) * 6
    assert budget == 12 * sum(stats.nbytes) > 0
