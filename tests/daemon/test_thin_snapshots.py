"""Snapshots of ranges of positions, and chains of them: what is restored is what a cold run has."""

from __future__ import annotations

import importlib
import sys

import pytest
from talk import Talk

from kinfolk.daemon.frames import Wire
from kinfolk.registry import Registry
from kinfolk.scaffold.write import NewFamily, write_family
from kinfolk.testing.kit import Kit

DONE, FAILED = -1, -5
DENSE = {"recurrent": False}
HYBRID = {"recurrent": True}
WINDOWED = {"recurrent": False, "windows": (None, 70)}
FAMILIES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]


@pytest.fixture
def held(scene):
    """``held(**options)``: a scene with request 1, of long.bin, which is held at position 302."""

    def make(wire=Wire.TAGGED, **options):
        s = scene(wire, **{"slots": 3, "checkpoints": 8, **options})
        s.say(f"REQ 1 SLOT 2 START {s.folder}/long.bin 9 3")
        return s

    return make


def restored(s, line, prompt, total=6):
    """What a request of a line gives, and what it is said to have reused."""
    s.file("next.bin", prompt)
    s.say(f"REQ 2 {line} {s.folder}/next.bin {total}")
    assert s.tokens[2] == s.solo(prompt, total), s.said
    return s.said[-1]


# -- ranges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["1,2", "2,1"])
def test_a_chain_is_a_beginning_and_the_ranges_behind_it(held, prompts, order):
    s = held(**DENSE)
    s.say(f"SLOT 1 {s.folder}/long.bin 1 snap=100:0")
    assert s.say("REQ 1 SNAPSHOT_THIN 1 64 192", "REQ 1 SNAPSHOT_THIN 2 192 256") == [(1, DONE)] * 2
    assert s.said[-1] == "snapshot=2 length=256 thin=192..256 kept=memory"
    s.say("CANCEL 1")
    said = restored(s, f"RESTORE_CHAIN 0 {order}", (*prompts["long"][:256], 3, 4))
    assert "reused=256" in said
    s.engine.world.check_idle()


def test_a_chain_may_begin_with_a_range_from_the_first_position(held, prompts):
    s = held(**DENSE)
    s.say("REQ 1 SNAPSHOT_THIN 1 0 128", "CANCEL 1")
    assert "reused=128" in restored(s, "RESTORE_CHAIN -1 1", (*prompts["long"][:128], 9))


@pytest.mark.parametrize("options", [DENSE, HYBRID, WINDOWED])
def test_every_family_has_a_range_that_ends_where_the_request_is(held, prompts, options):
    s = held(**options)
    a = s.solo(prompts["long"], 9)
    s.say("REQ 1 SNAPSHOT 0", "REQ 1 CONTINUE 3", "REQ 1 SNAPSHOT_THIN 1 200 305")
    s.say("CANCEL 1")
    said = restored(s, "RESTORE_CHAIN 0 1", (*prompts["long"], *a[:5], 1, 2))
    assert "reused=305" in said
    s.say("LIST_SLOTS")
    assert s.said[-1] == "snapshots 2\nsnapshot=0 length=302\nsnapshot=1 length=305 thin=200..305"


@pytest.mark.parametrize("options", [HYBRID, WINDOWED])
def test_a_range_may_end_at_a_checkpoint_that_is_there(held, prompts, options):
    s = held(**options)
    s.say(f"SLOT 0 {s.folder}/long.bin 1 snap=100:0")
    s.say("REQ 1 SNAPSHOT_THIN 1 64 100", "CANCEL 1")
    assert "reused=100" in restored(s, "RESTORE_CHAIN 0 1", (*prompts["long"][:100], 9))


def test_a_range_whose_state_was_dropped_is_computed_again(held, prompts):
    s = held(**DENSE, checkpoints=1)
    s.say("REQ 1 SNAPSHOT_THIN 1 0 128", "CANCEL 1", f"{s.folder}/b.bin 1 snap=9:4")
    assert "reused=0" in restored(s, "RESTORE_CHAIN -1 1", (*prompts["long"][:128], 9))


def test_a_range_adds_its_own_chunks_only(held):
    s = held(**DENSE)
    s.say("REQ 1 SNAPSHOT_THIN 0 0 128", "REQ 1 SNAPSHOT_THIN 1 128 256")
    kept = [checkpoint.chunks[0] for _, checkpoint in s.engine.world.prefixes.items()]
    assert [sorted(chunks) for chunks in kept] == [[0, 1], [0, 1, 2, 3]]
    assert len({chunk.identity for chunks in kept for chunk in chunks.values()}) == 4


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "line", "message"),
    [
        (DENSE, "REQ 1 SNAPSHOT_THIN 7 64 100", "a multiple of 64 or 302, where the request is"),
        (DENSE, "REQ 1 SNAPSHOT_THIN 7 64 384", "position 384 is not in 1..302"),
        (DENSE, "REQ 1 SNAPSHOT_THIN 64 0 64", "numbered from 0 to 63"),
        (DENSE, "REQ 1 SNAPSHOT_THIN 7 64 64", "64..64 is no range of positions"),
        (HYBRID, "REQ 1 SNAPSHOT_THIN 7 0 64", "recurrent state moved on to position 302"),
        (WINDOWED, "REQ 1 SNAPSHOT_THIN 7 0 64", "attention to the last 70 positions moved on"),
        (DENSE, "RESTORE 1 {folder}/long.bin 2", "snapshot 1 is thin: it begins at position 0"),
        (DENSE, "RESTORE_CHAIN 1 - {folder}/long.bin 2", "snapshot 1 is thin"),
        (DENSE, "RESTORE_CHAIN 1 2 {folder}/long.bin 2", "snapshot 1 is thin"),
        (DENSE, "RESTORE_CHAIN -1 0 {folder}/long.bin 2", "snapshot 0 is not thin"),
        (DENSE, "RESTORE_CHAIN 0 1,0 {folder}/long.bin 2", "snapshot 0 is not thin"),
        (DENSE, "RESTORE_CHAIN -1 2 {folder}/long.bin 2", "positions 0 to 191 are in no snapshot"),
        (DENSE, "RESTORE_CHAIN -1 2,1 {folder}/long.bin 2", "positions 64 to 191 are in no"),
        (DENSE, "RESTORE_CHAIN 0 9 {folder}/long.bin 2", "there is no snapshot 9"),
        (
            DENSE,
            "RESTORE_CHAIN 4 1 {folder}/long.bin 2",
            "snapshots 4 and 1 are of different texts",
        ),
        (DENSE, "RESTORE_CHAIN -1 1 {folder}/a.bin 2", "with the 64 tokens of snapshot 1"),
        (DENSE, "RESTORE_CHAIN 0 1, {folder}/long.bin 2", "'' is no whole number"),
        (DENSE, "RESTORE_CHAIN 0 1,-1 {folder}/long.bin 2", "'-1' is no whole number"),
    ],
)
def test_a_mistake_is_one_reply_and_changes_nothing(held, prompts, options, line, message):
    s = held(Wire.TAGGED_V2, **options)
    s.say(
        f"{s.folder}/long.bin 1 snap=20:0",
        f"{s.folder}/b.bin 1 snap=10:4",
        *(["REQ 1 SNAPSHOT_THIN 1 0 64", "REQ 1 SNAPSHOT_THIN 2 192 256"] * (options is DENSE)),
    )
    s.say("LIST_SLOTS")
    snapshots, seen = s.texts[-1], s.engine.view()
    kept = s.engine.world.prefixes.items()
    number = 1 if line.startswith("REQ 1") else 0
    assert s.say(line.format(folder=s.folder)) == [(number, FAILED), (number, DONE)]
    assert message in s.texts[-1]
    assert (s.engine.view(), s.engine.world.prefixes.items()) == (seen, kept)
    s.say("LIST_SLOTS")
    assert s.texts[-1] == snapshots
    s.say("SCHED_DRAIN")
    assert s.tokens[1] == s.solo(prompts["long"], 9)
    s.engine.world.check_idle()


def test_without_room_for_a_checkpoint_a_range_is_refused(scene):
    s = scene(checkpoints=0, **DENSE)
    s.say(f"REQ 1 START {s.folder}/long.bin 9 3", "REQ 1 SNAPSHOT_THIN 1 0 64", "LIST_SLOTS")
    assert "no room for a checkpoint" in s.said[-2]
    assert s.said[-1] == "snapshots 0"


# -- real models -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """A tiny model whose family has keys and values of all positions, and nothing else."""
    folder = tmp_path_factory.mktemp("walnut")
    write_family(NewFamily("walnut"), folder)
    sys.path.insert(0, str(folder))
    yield Kit(
        "walnut",
        folder,
        Registry.build({"walnut": importlib.import_module("kinfolk_walnut.plugin")}),
    )
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "kinfolk_walnut"]:
        del sys.modules[name]


def talked(engine, model, folder, files, *lines):
    talk = Talk(engine(model=model, vocabulary=model.info.vocabulary), folder)
    for name, tokens in files.items():
        talk.file(name, tokens)
    talk.say(*lines)
    talk.end()
    return talk


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chain_gives_the_tokens_of_a_cold_run(engine, load, cases, tmp_path, family):
    model = load(cases / f"{family}.gguf")
    text = [number * 13 % 400 for number in range(150)]
    start = f"REQ 1 START {tmp_path}/a.bin 40 20"
    warm = Talk(engine(model=model), tmp_path)
    warm.file("a.bin", text)
    warm.say(start, "REQ 1 SNAPSHOT 0", "REQ 1 CONTINUE 9", "REQ 1 SNAPSHOT_THIN 1 128 178",
             "SLOT 0 SNAPSHOT_THIN 2 0 64")  # fmt: skip
    warm.until(0, DONE)
    assert (0, FAILED) in warm.frames
    longer = [*text, *warm.tokens[1][:28], 7]
    warm.file("longer.bin", longer)
    warm.say("CANCEL 1", f"REQ 2 RESTORE_CHAIN 0 1 {tmp_path}/longer.bin 9")
    warm.end()
    assert f"err {model.family.name}: no state can be kept at position 64" in warm.texts[0][0]
    assert "reused=178 " in warm.texts[2][-1]
    cold = talked(engine, model, tmp_path, {}, f"REQ 2 {tmp_path}/longer.bin 9")
    assert warm.tokens[2] == cold.tokens[2]


def test_a_dense_family_takes_ranges_of_what_it_has_passed(engine, load, dense, tmp_path):
    model = load(dense.path, dense.registry, checkpoints=4)
    text = [number * 13 % model.info.vocabulary for number in range(200)]
    longer = [*text[:192], 5, 6, 7]
    files = {"a.bin": text, "longer.bin": longer}
    line = f"REQ 2 {{}}{tmp_path}/longer.bin 9"
    warm = talked(
        engine, model, tmp_path, files, f"REQ 1 START {tmp_path}/a.bin 9 3",
        "REQ 1 SNAPSHOT_THIN 1 0 128", "REQ 1 SNAPSHOT_THIN 2 128 192",
        line.format("SLOT 1 RESTORE_CHAIN -1 2,1 "),
    )  # fmt: skip
    assert "reused=192 " in warm.texts[2][-1]
    cold = talked(engine, model, tmp_path, files, line.format(""))
    assert warm.tokens[2] == cold.tokens[2]
