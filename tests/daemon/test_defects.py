"""Seventeen mistakes that a scheduler's wire can make, each with what holds instead."""

from __future__ import annotations

import pytest

from kinfolk.daemon.frames import Wire
from kinfolk.sched.plan import ItemKind
from kinfolk.sched.request import FinishReason

DONE, OVER, FAILED = -1, -4, -5
CONTROL = ["LIST_REQUESTS", "CANCEL 9", "LIST_SLOTS", "park", "nonsense", "SCHED_BATCH_PEEK"]


def test_1_both_spellings_of_the_header_are_equal(scene):
    written = []
    for word in ("REQ", "REQUEST"):
        s = scene()
        s.say(f"{word} 4 START {s.folder}/a.bin 4 2")
        written.append(s.written)
    assert written[0] == written[1] != b""


def test_2_a_drain_ends_whatever_lines_come_in_between(scene, prompts):
    s = scene()
    for request, name in ((1, "a"), (2, "b")):
        s.say(f"REQ {request} START {s.folder}/{name}.bin 9 2")
    s.send("SCHED_DRAIN")
    for line in CONTROL * 3:
        s.send(f"REQ 77 {line}")
        s.step()
    s.run()
    assert s.tokens == {1: s.solo(prompts["a"], 9), 2: s.solo(prompts["b"], 9)}
    assert [frame for frame in s.frames if frame[0] == 77] == [(77, DONE)] * 3 * len(CONTROL)


@pytest.mark.parametrize("quality", [0.5, 1.0])
def test_3_no_token_is_lost_where_a_turn_cuts_a_draft(scene, prompts, quality):
    streams = []
    for quantum in (1, 2, 3, 4, 5, 6, 7, 1000):
        s = scene(quality=quality, max_draft=6)
        s.say(f"REQ 1 START {s.folder}/a.bin 30 {quantum}", "SCHED_DRAIN")
        streams.append(s.tokens[1])
    assert streams == [s.solo(prompts["a"], 30)] * len(streams)


def test_4_a_batched_step_stops_at_a_stop_token(scene, prompts):
    a = scene().solo(prompts["a"], 3)
    s = scene(slots=2, stop=frozenset({a[1]}))
    for request in (1, 2):
        s.say(f"REQ {request} START {s.folder}/a.bin 9 1")
    assert s.say("SCHED_BATCH_TARGET_STEP") == [
        (request, word) for request in (1, 2) for word in (a[1], DONE)
    ]


@pytest.mark.parametrize("quality", [None, 1.0])
def test_5_nothing_follows_a_stop_token_and_counters_are_exact(scene, prompts, quality):
    a = scene().solo(prompts["a"], 30)
    stop = frozenset({a[9]})
    expected = a[: a.index(a[9]) + 1]
    s = scene(quality=quality, max_draft=6, stop=stop)
    assert s.say(f"REQ 1 START {s.folder}/a.bin 30 30") == [
        *((1, token) for token in expected),
        (1, DONE),
    ]
    (done,) = s.engine.world.finished.values()
    assert (done.reason, done.usage.emitted) == (FinishReason.STOP, len(expected))
    assert s.said == [f"ok req=1 prompt=20 reused=0 gen={len(expected)} finish=stop"]


def test_6_the_whole_length_is_checked_when_a_request_is_admitted(scene, prompts):
    s = scene(context=64)
    assert s.say(f"REQ 1 START {s.folder}/a.bin 45 2") == [(1, DONE)]
    assert "the context holds 64" in s.said[-1]
    s.say(f"REQ 1 START {s.folder}/a.bin 44 2", "SCHED_DRAIN")
    assert s.tokens[1] == s.solo(prompts["a"], 44)
    assert s.said[-1].endswith("finish=length")


def test_7_an_id_that_lives_is_refused(scene, prompts):
    s = scene()
    s.say(f"REQ 1 START {s.folder}/a.bin 4 2")
    assert s.say(f"REQ 1 START {s.folder}/b.bin 4 2") == [(1, DONE)]
    s.say("REQ 1 CONTINUE 9")
    assert s.tokens == {1: s.solo(prompts["a"], 4)}


def test_8_ends_acknowledgements_and_errors_can_be_told_apart(scene):
    s = scene(Wire.TAGGED_V2)
    assert s.say("REQ 3 LIST_SLOTS") == [(3, DONE)]
    assert s.say("REQ 3 nonsense") == [(3, FAILED), (3, DONE)]
    assert s.say(f"REQ 3 START {s.folder}/a.bin 1 1")[1:] == [(3, DONE)]
    assert [text.split()[0] for text in s.texts] == ["snapshots", "err", "ok"]


@pytest.mark.parametrize("what", ["", "target", "draft", "all"])
def test_9_weights_are_not_parked_under_live_requests(scene, prompts, what):
    s = scene()
    s.say(f"REQ 1 START {s.folder}/a.bin 4 2")
    s.say(f"park {what}")
    assert "requests 1 have not ended" in s.said[-1]
    s.say("SCHED_DRAIN")
    assert s.tokens == {1: s.solo(prompts["a"], 4)}


def test_10_batched_and_single_steps_see_the_same_positions(scene):
    """The toy reads all that attention would, through a window of 70 positions."""
    s = scene(windows=(None, 70), slots=2)
    long = tuple(number * 7 % 29 for number in range(150))
    s.file("windowed.bin", long)
    for request in (1, 2):
        s.say(f"REQ {request} START {s.folder}/windowed.bin 20 1")
    for _ in range(8):
        s.say("SCHED_BATCH_TARGET_STEP")
    s.say("SCHED_DRAIN")
    assert s.tokens == dict.fromkeys((1, 2), s.solo(long, 20))


def test_11_a_batched_step_copies_no_state(scene):
    s = scene(slots=2)
    for request in (1, 2):
        s.say(f"REQ {request} START {s.folder}/a.bin 9 1")
    steps = len(s.engine.plans)
    s.say("SCHED_BATCH_TARGET_STEP", "SCHED_BATCH_DRAIN")
    plans = s.engine.plans[steps:]
    assert all(len(plan.items) == 2 for plan in plans)
    assert [operation for plan in plans for operation in plan.operations] == []


@pytest.mark.parametrize(
    "line",
    [
        "SNAPSHOT 0",
        "SNAPSHOT 99",
        "SNAPSHOT_THIN 0 0 9",
        "FREE_SNAPSHOT 0",
        "LIST_SLOTS",
        "",
        "x y",
    ],
)
@pytest.mark.parametrize("wire", Wire)
def test_12_every_line_has_exactly_one_terminal_reply(scene, line, wire):
    s = scene(wire)
    found = s.say(line)
    assert [word for _, word in found if word != FAILED] == [DONE]
    s.end()
    assert s.session.over


def test_13_each_request_has_its_own_sampler(scene):
    s = scene()
    s.send(
        f"REQ 1 START {s.folder}/a.bin 9 1 samp=0.9,1,0,1,1",
        f"REQ 2 START {s.folder}/a.bin 9 1",
    )
    one, other = s.engine.world.requests.values()
    assert (one.sampling.temperature, other.sampling.temperature) == (0.9, 0)


def test_14_two_steps_that_are_queued_check_again_what_remains(scene, prompts):
    s = scene(slots=1)
    s.say(f"REQ 1 START {s.folder}/a.bin 4 2")
    a = s.solo(prompts["a"], 4)
    assert s.say("SCHED_STEP", "REQ 9 SCHED_STEP") == [
        *((1, a[2]), (1, a[3]), (1, DONE)),
        (9, DONE),
    ]
    assert s.said[-1] == "idle"


def test_15_nobody_continues_what_was_cancelled(scene, prompts):
    s = scene(slots=1)
    s.say(f"REQ 1 SLOT 0 START {s.folder}/a.bin 9 2", "CANCEL 1")
    for line in ("REQ 1 CONTINUE 2", "SLOT 0 CONTINUE 2", "REQ 2 SLOT 0 CONTINUE 2"):
        s.say(line)
        assert "there is no request" in s.said[-1]
    s.say(f"REQ 2 SLOT 0 START {s.folder}/a.bin 3 3")
    assert s.tokens[2] == s.solo(prompts["a"], 3)


@pytest.mark.parametrize("line", ["CANCEL 1", "REQ 1 CANCEL"])
def test_16_a_cancel_waits_for_a_slice_at_most(scene, line):
    s = scene()
    s.send(f"REQ 1 START {s.folder}/long.bin 9 2", "REQ 1 CONTINUE 5")
    s.step()
    s.send(line)
    assert s.engine.view() == ()
    assert s.frames.count((1, DONE)) >= 1
    frames = s.frames
    s.run()
    assert s.frames == frames
    assert len(s.engine.plans) == 1


def test_16_a_short_request_starts_beside_a_long_prompt(scene):
    prompt = tuple(number % 29 for number in range(3000))
    s = scene(context=4096, slice=64, step_tokens=128)
    s.file("huge.bin", prompt)
    s.send(f"REQ 1 START {s.folder}/huge.bin 9 2")
    s.step()
    s.step()
    s.send(f"REQ 2 START {s.folder}/b.bin 9 2")
    s.step()
    s.step()
    assert 2 in s.tokens
    assert 1 not in s.tokens
    mixed = s.engine.plans[-1].items
    assert {item.kind for item in mixed} == {ItemKind.PREFILL, ItemKind.DECODE}


# The seventeenth, writes that are short or fail, is in test_connection.py: it needs real streams.
