"""DFlash in the engine: output is that without it, and every draft is what the plain implementation
drafts from the model's features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from dflash_bench import file_keys, file_tensors, write_file
from dflash_reference import Reference, Shape, random_tensors
from dflash_training import Trainer

from kinfolk.engine.loading import load_model
from kinfolk.errors import ModelFormatError, SettingsError, UnsupportedModelError
from kinfolk.gguf.file import GGUFFile
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings
from kinfolk.testing.driver import Driver

SHAPES = {
    "windowed layers, then full": Shape(
        (20, 20, None), (True, True, False), vocabulary=768, mask=767, dim=32,
        feature_layers=(0, 2, 3),
    ),
    "gates": Shape(
        (24, 24), (True, True), vocabulary=768, mask=767, feature_layers=(1, 3), block=8, dim=32,
        feature_norms=True, context_norm=True, gate="head",
    ),
    "DFlash 2": Shape(
        (70, None), (True, False), vocabulary=768, mask=767, feature_layers=(1, 2), block=8, dim=32,
        conv=(2, 16), selector=(12, 8),
    ),
}  # fmt: skip
# Features are bfloat16: the company of a row decides some of their last bits, which moves scores by
# up to 6.5e-3.
NEAR = 1e-2
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.9, top_p=0.95, seed=11),
    Sampling(temperature=1.2, repetition_penalty=1.2, seed=3),
]


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shape(request):
    return request.param


@pytest.fixture
def drafter_file(cases, tmp_path):
    """``drafter_file(shape, case=..., **keys)``: a drafter for the model of a reference case, of
    random weights unless it gets ``tensors``."""

    def write(shape, tensors=None, case="qwen35", **keys):
        with GGUFFile.open(cases / f"{case}.gguf") as file:
            tokens = list(file.metadata.strings("tokenizer.ggml.tokens"))
        found = file_keys(shape, "B") | {"tokenizer.ggml.tokens": tokens} | keys
        arrays = file_tensors(tensors or random_tensors(shape), "B")
        present = {key: value for key, value in found.items() if value is not None}
        return write_file(tmp_path / "case-draft.gguf", present, arrays)

    return write


@pytest.fixture
def load_case(cases, registry):
    """``load_case(case, **settings)``: the model of a reference case."""

    def open_model(case, **settings):
        options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 8, **settings}
        return load_model(cases / f"{case}.gguf", load_settings(**options), registry)

    return open_model


@dataclass
class Draft:
    """One lane of a draft."""

    slot: int
    anchor: int
    start: int
    tokens: torch.Tensor
    scores: torch.Tensor


@pytest.fixture
def drafted(load_case, drafter_file):
    """``drafted(shape, case, keys, **settings)``: the model with a drafter, and the list of its
    drafts; ``keys`` are further ones of the drafter's file."""

    def open_model(shape, case="qwen35", keys=None, **settings):
        path = drafter_file(shape, case=case, **(keys or {}))
        loaded = load_case(case, **{"graphs": "off", "draft_model": path, **settings})
        drafts: list[Draft] = []
        drafter = loaded.drafter.drafter
        draft = drafter.draft

        def noting(block: Any, view: Any) -> Any:
            proposals = draft(block, view)
            lanes = zip(block.slots.tolist(), block.tokens.tolist(), block.positions.tolist(),
                        proposals.tokens, proposals.scores, strict=True)  # fmt: skip
            drafts.extend(Draft(*lane) for lane in lanes if lane[0])
            return proposals

        drafter.draft = noting
        return loaded, drafts

    return open_model


def several(text, count, new=24):
    return [
        Request(f"r{i}", tuple(text[: 11 + 17 * i]), new, SAMPLINGS[i % len(SAMPLINGS)])
        for i in range(count)
    ]


@pytest.mark.parametrize(("mode", "graphs"), [("chain", "off"), ("chain", "on"), ("tree", "on")])
def test_output_is_that_without_a_drafter(
    shape, mode, graphs, engine, text, solo, collect, drafted
):
    loaded, _ = drafted(shape, draft_mode=mode, draft_budget=12, graphs=graphs)
    running, many = engine(model=loaded), several(text, 4)
    tickets = [running.submit(request) for request in many]
    for request, ticket in zip(many, tickets, strict=True):
        assert collect(ticket).tokens == solo(request).tokens
    assert running.stats()["draft_failures"] == 0
    assert running.stats()["drafts"] > 0


def features_of(loaded, shape, tokens):
    """Features bfloat16 of a text, by a forward of all of it."""
    driver = Driver(loaded)
    lease = driver.open()
    driver.feed({lease: tokens})
    (found,) = driver.features()
    assert found.shape == (len(tokens), len(shape.feature_layers) * shape.width)
    return found.float()


@torch.inference_mode()
def check_drafts(shape, drafts, many, outcomes, plain):
    """Nearly all drafts are those of the plain implementation, with features of the whole text and
    the model's own embedding and logits."""
    plain.model.features(shape.feature_layers)
    table = plain.model.embed(torch.arange(shape.vocabulary)).float()
    nothing = torch.zeros(0, shape.width)
    checked = 0
    for request, outcome in zip(many, outcomes, strict=True):
        known = [*request.prompt, *outcome.tokens]
        features = features_of(plain, shape, known)
        for draft in drafts:
            if draft.start >= len(known) or known[draft.start] != draft.anchor:
                continue
            reference = Reference(shape, random_tensors(shape), table, nothing)
            reference.extend(features[: draft.start])
            scores = scores_of(reference, plain.model, draft.anchor)
            # Another sequence may have the same token there, and another draft.
            checked += torch.allclose(draft.scores, scores, rtol=0, atol=NEAR)
    # Drafts for the last steps of a request are not for tokens of its output.
    assert checked >= len(drafts) - 2 * len(many) > 20


def test_every_draft_is_that_of_the_plain_implementation(
    shape, engine, text, collect, drafted, load
):
    """From slices of a prompt, decoded and kept rows, in several lanes."""
    loaded, drafts = drafted(shape)
    many = [replace(request, sampling=Sampling()) for request in several(text, 3)]
    running = engine(model=loaded)
    outcomes = [collect(ticket) for ticket in [running.submit(request) for request in many]]
    check_drafts(shape, drafts, many, outcomes, load())


OTHERS = {
    "scale and softcap, left to the model": (
        "gemma4",
        {"dflash.embedding_scale": None, "dflash.logit_scale": None},
    ),
    "scale and softcap, stated": (
        "gemma4",
        {"dflash.embedding_scale": 8.0, "dflash.final_logit_softcapping": 30.0},
    ),
    "experts": ("qwen35moe", {}),
    "windows and gates": ("laguna", {}),
}


@pytest.mark.parametrize(("case", "keys"), OTHERS.values(), ids=OTHERS)
def test_drafts_for_other_families(case, keys, engine, text, collect, drafted, load_case):
    shape = SHAPES["windowed layers, then full"]
    loaded, drafts = drafted(shape, case, keys)
    many = [replace(request, sampling=Sampling()) for request in several(text, 2)]
    running = engine(model=loaded)
    outcomes = [collect(ticket) for ticket in [running.submit(request) for request in many]]
    plain = load_case(case)
    alone = engine(model=plain, slots=1)
    for request, outcome in zip(many, outcomes, strict=True):
        assert outcome.tokens == collect(alone.submit(request)).tokens
    check_drafts(shape, drafts, many, outcomes, load_case(case))


def scores_of(reference, model, anchor):
    if reference.shape.selector is None:
        logits = model.logits(reference.hidden(anchor)[1:])
        return logits.log_softmax(-1).topk(8, -1).values
    reference.head = logits_table(model, reference.shape)
    return torch.tensor(reference.walk(anchor)[1])


def logits_table(model, shape):
    """The head as a matrix, for a model without a softcap."""
    return model.logits(torch.eye(shape.width)).T


# -- a trained drafter ----------------------------------------------------------------------------


FEW_STEPS = 1 + 60 // 5
"""Six tokens in a step at best; the prompt's step has one."""


@pytest.fixture(scope="module")
def trained(text, solo, load):
    """A request, and a drafter that was trained on its text by the definition of training."""
    shape = Shape(
        (20, None), (True, False), vocabulary=768, mask=767, dim=16, feature_layers=(0, 2, 3)
    )
    request = Request("r", tuple(text[:30]), 60, Sampling())
    known = [*request.prompt, *solo(request).tokens]
    plain = load()
    plain.model.features(shape.feature_layers)
    with torch.inference_mode():
        tables = plain.model.embed(torch.arange(768)), logits_table(plain.model, shape)
        features = features_of(plain, shape, known)
    copies = [table.float().clone() for table in (features, *tables)]
    trainer = Trainer(shape, copies[0], known, *copies[1:], first=len(request.prompt) - 1)
    return request, shape, trainer.run(250)


def test_a_trained_drafter_has_most_of_its_tokens_kept(
    trained, engine, solo, collect, load, drafter_file
):
    """Any confusion of rows, positions or layers between training and the engine would show."""
    request, shape, tensors = trained
    running = engine(model=load(draft_model=drafter_file(shape, tensors), draft_mode="chain"))
    outcome = collect(running.submit(request))
    assert outcome.tokens == solo(request).tokens
    assert outcome.end.usage.steps <= FEW_STEPS


@pytest.mark.parametrize(
    "wrong",
    [{"dflash.target_layers": [2, 4, 5]}, {"dflash.rope.freq_base": 500.0}],
    ids=["layers counted from another number", "another base"],
)
def test_a_trained_drafter_loses_tokens_by_mistakes_that_nothing_else_shows(
    wrong, trained, engine, solo, collect, load, drafter_file
):
    request, shape, tensors = trained
    path = drafter_file(shape, tensors, **wrong)
    running = engine(model=load(draft_model=path, draft_mode="chain"))
    outcome = collect(running.submit(request))
    assert outcome.tokens == solo(request).tokens
    assert outcome.end.usage.steps > FEW_STEPS


# -- what does not fit ----------------------------------------------------------------------------


def test_a_drafter_of_another_model_is_refused(load, drafter_file):
    shape = SHAPES["gates"]
    with pytest.raises(UnsupportedModelError, match="layer 61, the model has"):
        load(draft_model=drafter_file(shape, **{"dflash.target_layers": [2, 62]}))
    with pytest.raises(ModelFormatError, match=r"takes 2·32 numbers.*have 64"):
        load(draft_model=drafter_file(replace(shape, width=32)))


def test_a_token_that_differs_is_named(load, drafter_file, loaded):
    tokens = loaded.file.metadata.strings("tokenizer.ggml.tokens")
    other = [*tokens[:5], "other", *tokens[6:]]
    with pytest.raises(UnsupportedModelError, match="'other' as token 5"):
        load(draft_model=drafter_file(SHAPES["gates"], **{"tokenizer.ggml.tokens": other}))


def test_more_tokens_than_the_trained_block_are_refused(load, drafter_file):
    with pytest.raises(SettingsError, match=r"--draft-tokens 9.*at most 7 tokens"):
        load(draft_model=drafter_file(SHAPES["gates"]), draft_tokens=9)
