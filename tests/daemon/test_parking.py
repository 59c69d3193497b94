"""park and unpark on the wire."""

from __future__ import annotations

import pytest

from kinfolk.daemon.frames import Wire

DONE, FAILED = -1, -5


def start(s, number=1, total=4, quantum=2):
    return f"REQ {number} START {s.folder}/a.bin {total} {quantum}"


def test_parking_and_unparking_have_one_reply_each(scene, prompts):
    s = scene()
    assert s.say("REQ 5 park target") == [(5, DONE)]
    assert s.engine.parked == {"target"}
    assert s.say("REQ 6 unpark") == [(6, DONE)]
    assert s.engine.parked == frozenset()


def test_a_request_that_comes_meanwhile_runs_after_unparking(scene, prompts):
    s = scene()
    s.say("park")
    assert s.say(start(s), "REQ 1 CONTINUE 2") == []
    s.say("unpark")
    assert s.tokens[1] == s.solo(prompts["a"], 4)


def test_lines_that_arrive_together_are_obeyed_in_order(scene, prompts):
    s = scene()
    lines = [start(s), "park --drain", start(s, 2, 3, 3), "unpark", "REQ 9 LIST_REQUESTS"]
    s.say(*lines)
    s.end()
    assert s.session.over
    assert s.engine.parked == frozenset()
    assert s.tokens[1] == s.solo(prompts["a"], 4)
    assert s.tokens[2] == s.solo(prompts["a"], 3)


def test_a_line_behind_others_unparks_what_they_wait_for(scene, prompts):
    s = scene()
    s.say("park", start(s), "REQ 1 CONTINUE 2", "unpark")
    assert s.tokens[1] == s.solo(prompts["a"], 4)


def test_a_legacy_stream_can_unpark_what_it_waits_for(scene, prompts):
    s = scene(Wire.LEGACY)
    s.say("park")
    s.say(f"{s.folder}/a.bin 3")
    s.say("unpark")
    s.end()
    assert s.session.over


def test_with_drain_what_is_held_ends_first(scene, prompts):
    s = scene()
    s.say(start(s, 1, 5, 2), start(s, 2, 3, 1))
    s.say("park all --drain")
    assert s.engine.parked == {"target", "draft"}
    for number, total in ((1, 5), (2, 3)):
        assert s.tokens[number] == s.solo(prompts["a"], total)


def test_an_unpark_that_fails_says_why_and_leaves_it_parked(scene, prompts):
    s = scene(Wire.TAGGED_V2)
    s.say("park")
    s.engine.stuck = True
    assert s.say("REQ 3 unpark") == [(3, FAILED), (3, DONE)]
    assert "the disk is gone" in s.texts[-1]
    assert s.engine.parked


@pytest.mark.parametrize("wire", Wire)
def test_at_the_end_of_the_lines_nothing_waits_for_a_parked_model(scene, prompts, wire):
    s = scene(wire)
    s.say("park")
    s.say(f"REQ 2 SLOT 1 {s.folder}/a.bin 3" if wire.tagged else f"{s.folder}/a.bin 3")
    s.say(start(s) if wire.tagged else f"{s.folder}/a.bin 2")
    s.end()
    assert s.session.over
    assert not s.engine.world.scheduler.alive
