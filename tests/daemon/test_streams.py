"""Streams of several requests in turns of any length equal those of each request alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle_drafter
import pytest
import torch
from dflash_bench import file_keys, file_tensors, write_file
from dflash_reference import Shape
from dflash_training import Trainer
from mtp_bench import write_model
from talk import Talk

from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.engine import Engine
from kinfolk.gguf.file import GGUFFile
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.spec.ngram import PromptLookup
from kinfolk.testing.driver import Driver

DONE = -1
TOTAL = 8
EVER = 1000
CASES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]
DRAINS = ["SCHED_DRAIN", "SCHED_BATCH_DRAIN"]
COUNTS = (1, 2, 4, 8)
PAIRS = {1: (4,), 2: (8,), 7: (2,), EVER: (1, 8)}
"""Quantum -> numbers of requests, where not all are asked for."""


def solo(model, prompts, total=TOTAL):
    """The answers to each prompt, alone in an engine, without drafts."""
    limits = SchedulerLimits(slots=1, context=512, step_tokens=128, slice=32)
    found = []
    with Engine(model, limits) as alone:
        for prompt in prompts:
            events = list(alone.submit(Request("solo", tuple(prompt), total)))
            found.append([token for event in events[:-1] for token in event.tokens])
    return found


def drained(engine, folder, prompts, quantum, drain, total=TOTAL):
    """The streams of all prompts through one connection."""
    talk = Talk(engine, folder)
    lines = []
    for number, prompt in enumerate(prompts, start=1):
        talk.file(f"{number}.bin", prompt)
        lines.append(f"REQ {number} START {folder}/{number}.bin {total} {quantum}")
    talk.say(*lines, drain)
    talk.end()
    assert [frame[0] for frame in talk.frames if frame[1] == DONE and frame[0]] != []
    return [talk.tokens[number] for number in range(1, len(prompts) + 1)]


def texts(tokens, count):
    """Prompts of different lengths, one of them of several slices."""
    return [tokens[number : number + 9 + 11 * number] for number in range(count)]


@pytest.fixture(scope="module", params=[*CASES, "pocket"])
def family(request, load, cases, registry):
    """A tiny model of each family and the bundled one, with prompts and their answers."""
    if request.param == "pocket":
        path, tokens = bundled_model(registry), [number * 13 % 400 for number in range(160)]
    else:
        path = cases / f"{request.param}.gguf"
        tokens = np.load(cases / f"{request.param}.npz")["tokens"].tolist()
    model = load(path)
    prompts = texts(tokens, 8)
    return model, prompts, solo(model, prompts)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("quantum", PAIRS)
def test_every_family_gives_the_streams_of_solo_runs(engine, family, tmp_path, quantum, every):
    """``every``: each number of requests, with both drains."""
    model, prompts, expected = family
    running = engine(model=model)
    for count in COUNTS if every else PAIRS[quantum]:
        for drain in DRAINS if every else DRAINS[count % 4 == 0 :][:1]:
            found = drained(running, tmp_path, prompts[:count], quantum, drain)
            assert found == expected[:count]


# -- drafts ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drafted_texts(loaded, cases):
    """Prompts of the hybrid model, and their answers."""
    tokens = np.load(cases / "qwen35.npz")["tokens"].tolist()
    prompts = texts(tokens, 4)
    return prompts, solo(loaded, prompts, 24)


@pytest.mark.parametrize("quantum", [1, 3, EVER])
def test_drafts_of_the_host_are_cut_at_the_end_of_a_turn(
    engine, drafted_texts, loaded, tmp_path, quantum
):
    """By prompt lookup: several rows a sequence, accepted in part, in steps of several requests."""
    prompts, expected = drafted_texts
    # The answer that is to come stands in the prompt already, with a mistake in it.
    repeated = [
        [*prompt[-8:], *answer[:9], 3, *answer[10:], *prompt]
        for prompt, answer in zip(prompts, expected, strict=True)
    ]
    running = engine(PromptLookup(), max_draft=7)
    found = drained(running, tmp_path, repeated, quantum, "SCHED_BATCH_DRAIN", 24)
    assert found == solo(loaded, repeated, 24)
    assert running.stats()["draft_failures"] == 0


@pytest.mark.parametrize(("quantum", "graphs"), [(1, "on"), (2, "off"), (3, "on"), (EVER, "on")])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_drafts_of_the_device_are_cut_at_the_end_of_a_turn(
    engine, drafted_texts, load, registry, tmp_path, quantum, graphs, shape
):
    """A scripted drafter: a third of its tokens is wrong, and in trees the right one is not the
    first candidate."""
    prompts, expected = drafted_texts
    futures = [prompt + answer for prompt, answer in zip(prompts, expected, strict=True)]
    keys = {"wrong": 3} if shape == "chain" else {"wrong": 3, "columns": 2, "depth": 6}
    path = oracle_drafter.write(tmp_path / "draft.gguf", futures, **keys)
    drafters = replace(registry, drafters={**registry.drafters, "oracle": oracle_drafter.spec()})
    rows = {"draft_tokens": 6} if shape == "chain" else {"draft_budget": 14}
    model = load(registry=drafters, draft_model=path, draft_mode=shape, graphs=graphs, **rows)
    running = engine(model=model)
    assert drained(running, tmp_path, prompts, quantum, "SCHED_BATCH_DRAIN", 24) == expected
    if quantum == EVER:
        assert running.stats()["steps"] < 24, "several tokens a step"


# -- drafters with weights -------------------------------------------------------------------------

SHAPE = Shape((20, None), (True, False), vocabulary=768, mask=767, dim=32, feature_layers=(0, 2, 3))


def trained_tensors(plain, known, first):
    """Tensors of a drafter that was trained on a text from its token ``first`` on."""
    plain.model.features(SHAPE.feature_layers)
    driver = Driver(plain)
    driver.feed({driver.open(): known})
    with torch.inference_mode():
        everything = torch.arange(SHAPE.vocabulary)
        head = plain.model.logits(torch.eye(SHAPE.width)).T
        tables = plain.model.embed(everything), head
    copies = [table.float().clone() for table in (driver.features()[0], *tables)]
    return Trainer(SHAPE, copies[0], known, *copies[1:], first=first).run(120)


@pytest.fixture(scope="module", params=["dflash", "mtp moe"])
def with_weights(request, load, cases, tmp_path_factory):
    """A model and a drafter with weights that drafts trees, with prompts and their answers. That
    for multi-token prediction has random weights, so nearly all of its drafts are rejected; the
    other one was trained on the last text."""
    kind, _, moe = request.param.partition(" ")
    case, folder = f"qwen35{moe}", tmp_path_factory.mktemp("drafters")
    prompts = texts(np.load(cases / f"{case}.npz")["tokens"].tolist(), 3)
    trees = {"draft_mode": "tree", "draft_budget": 9}
    if kind == "mtp":
        path = folder / "model.gguf"
        write_model(path, case)
        answers = solo(load(path, draft="off"), prompts, 20)
        return load(path, **trees), prompts, answers, False
    path, drafter = cases / f"{case}.gguf", folder / "draft.gguf"
    answers = solo(load(path), prompts, 20)
    tensors = trained_tensors(load(path), prompts[-1] + answers[-1], len(prompts[-1]) - 1)
    with GGUFFile.open(path) as file:
        tokens = list(file.metadata.strings("tokenizer.ggml.tokens"))
    keys = file_keys(SHAPE, "B") | {"tokenizer.ggml.tokens": tokens}
    present = {key: value for key, value in keys.items() if value is not None}
    write_file(drafter, present, file_tensors(tensors, "B"))
    return load(path, draft_model=drafter, **trees), prompts, answers, True


@pytest.mark.parametrize("quantum", [1, 2, 7, EVER])
def test_trees_of_a_drafter_with_weights_leave_streams_as_they_are(
    engine, with_weights, tmp_path, quantum
):
    model, prompts, expected, trained = with_weights
    running = engine(model=model)
    drain = DRAINS[quantum % 2]
    assert drained(running, tmp_path, prompts, quantum, drain, 20) == expected
    stats, tokens = running.stats(), 20 * len(prompts)
    assert stats["draft_failures"] == 0
    assert stats["drafts"] > 0
    verified = stats["rows"] - stats["prefill_rows"] > tokens
    assert verified == (quantum > 1), "in a turn of one token nothing can be verified"
    if trained and quantum > 1:
        alone = Request("alone", tuple(prompts[-1]), 20)
        before = stats["decode_steps"]
        *_, end = running.submit(alone)
        assert end.usage.accepted >= 12
        assert running.stats()["decode_steps"] - before <= 8
