"""What a session writes: the transcript, turns, drains, batches, cancels and mistakes."""

from __future__ import annotations

import os
import struct

import pytest

from kinfolk.daemon.frames import Wire

DONE, OVER, FAILED = -1, -4, -5


def frames(*words):
    return b"".join(struct.pack("<iii", *frame) for frame in words)


@pytest.fixture(params=["together", "one by one"])
def spoken(request):
    """How the lines of a transcript arrive."""

    def speak(scene, *lines):
        if request.param == "together":
            scene.say(*lines)
        else:
            for line in lines:
                scene.say(line)

    return speak


def test_the_transcript_is_equal_byte_for_byte(scene, prompts, spoken):
    s = scene(slice=32, step_tokens=64)
    spoken(
        s,
        f"REQ 4 SLOT 0 START {s.folder}/a.bin 4 2",
        f"REQ 5 SLOT 1 START {s.folder}/b.bin 3 2",
        "SCHED_DRAIN",
    )
    a, b = s.solo(prompts["a"], 4), s.solo(prompts["b"], 3)
    assert s.written == frames(
        *((-2, 4, a[0]), (-2, 4, a[1]), (-2, 4, OVER)),
        *((-2, 5, b[0]), (-2, 5, b[1]), (-2, 5, OVER)),
        *((-2, 4, a[2]), (-2, 4, a[3]), (-2, 4, DONE)),
        *((-2, 5, b[2]), (-2, 5, DONE)),
    )


def test_the_transcript_is_equal_also_when_the_first_prompt_takes_longer(scene, prompts, spoken):
    """Turns stand together, and a drain begins behind the turns of the lines before it."""
    s = scene()
    spoken(
        s,
        f"REQ 4 SLOT 0 START {s.folder}/b.bin 4 2",
        f"REQ 5 SLOT 1 START {s.folder}/long.bin 3 2",
        "SCHED_DRAIN",
    )
    a, b = s.solo(prompts["b"], 4), s.solo(prompts["long"], 3)
    expected = [(4, a[0]), (4, a[1]), (4, OVER), (5, b[0]), (5, b[1]), (5, OVER)]
    assert s.frames == [*expected, (4, a[2]), (4, a[3]), (4, DONE), (5, b[2]), (5, DONE)]


def test_a_legacy_stream_is_equal_word_for_word(scene, prompts, spoken):
    s = scene(Wire.LEGACY, slots=1)
    spoken(s, f"{s.folder}/a.bin 3", "nonsense", f"REQ 7 START {s.folder}/b.bin 3 2", "SCHED_STEP")
    a, b = s.solo(prompts["a"], 3), s.solo(prompts["b"], 3)
    words = [*a, DONE, DONE, b[0], b[1], OVER, b[2], DONE]
    assert s.written == struct.pack(f"<{len(words)}i", *words)


def test_legacy_requests_in_several_slots_run_one_after_the_other(scene, prompts):
    s = scene(Wire.LEGACY, slots=2)
    s.say(
        f"SLOT 1 {s.folder}/long.bin 3",
        f"{s.folder}/b.bin 2",
        "CANCEL 9",
        f"REQ 3 START {s.folder}/a.bin 2 1",
        "SCHED_DRAIN",
    )
    long, b, a = (s.solo(prompts[name], 3) for name in ("long", "b", "a"))
    assert [word for _, word in s.frames] == [
        *long,
        DONE,
        *b[:2],
        DONE,
        DONE,
        a[0],
        OVER,
        a[1],
        DONE,
    ]


# -- turns -----------------------------------------------------------------------------------------


def test_a_continued_request_prefills_nothing_again(scene, prompts):
    s = scene()
    s.say(f"REQ 1 START {s.folder}/a.bin 5 1")
    before = s.engine.prefills
    assert s.say("REQ 1 CONTINUE 2")[-1] == (1, OVER)
    assert s.say("REQ 1 SLOT 0 CONT 99")[-1] == (1, DONE)
    assert s.engine.prefills == before
    assert s.tokens[1] == s.solo(prompts["a"], 5)


def test_continues_that_arrive_together_run_one_after_the_other(scene, prompts):
    s = scene()
    found = s.say(f"REQ 1 START {s.folder}/a.bin 6 2", "REQ 1 CONTINUE 1", "REQ 1 CONTINUE 3")
    a = s.solo(prompts["a"], 6)
    assert [word for _, word in found] == [*a[:2], OVER, a[2], OVER, *a[3:], DONE]


def test_the_rotation_begins_behind_the_slot_that_was_served_last(scene):
    s = scene(slots=3)
    for request, slot in ((1, 2), (2, 0), (3, 1)):
        s.say(f"REQ {request} SLOT {slot} START {s.folder}/a.bin 9 1")
    order = [s.say("SCHED_STEP")[0][0] for _ in range(5)]
    assert order == [2, 3, 1, 2, 3]


def test_a_start_without_a_slot_takes_the_lowest_free_one(scene):
    s = scene(slots=3)
    s.say(f"REQ 1 SLOT 1 START {s.folder}/a.bin 9 1")
    s.say(f"REQ 2 START {s.folder}/a.bin 9 1", f"REQ 3 START {s.folder}/a.bin 9 1")
    assert {v.request_id: v.slot for v in s.engine.view()} == {"toy-1": 2, "toy-2": 1, "toy-3": 3}
    assert s.say(f"REQ 4 START {s.folder}/a.bin 9 1") == [(4, DONE)]
    assert "the queue is full: 3 requests are in flight" in s.said[-1]


def test_a_line_that_needs_a_slot_waits_for_a_turn_that_may_free_one(scene, prompts):
    s = scene(slots=1)
    found = s.say(f"REQ 1 START {s.folder}/a.bin 2 2", f"REQ 2 SLOT 0 START {s.folder}/b.bin 2 2")
    a, b = s.solo(prompts["a"], 2), s.solo(prompts["b"], 2)
    assert [word for _, word in found] == [*a, DONE, *b, DONE]


def test_a_start_waits_in_the_queue_if_there_is_one_and_lines_go_on_meanwhile(scene, prompts):
    s = scene(slots=1, max_queue=1)
    s.say(f"REQ 1 START {s.folder}/a.bin 4 2", f"REQ 2 START {s.folder}/b.bin 2 2")
    assert s.say(f"REQ 3 START {s.folder}/b.bin 2 2") == [(3, DONE)]
    assert s.say("REQ 2 CONTINUE 1") == [(2, DONE)]
    assert s.said[-1] == "err request 2 waits for a slot"
    a, b = s.solo(prompts["a"], 4), s.solo(prompts["b"], 2)
    assert s.say("SCHED_STEP") == [(1, a[2]), (1, a[3]), (1, DONE), (2, b[0]), (2, b[1]), (2, DONE)]


@pytest.mark.parametrize("wire", [Wire.TAGGED, Wire.TAGGED_V2])
def test_a_batched_drain_serves_requests_together(scene, prompts, wire):
    s = scene(wire, slots=2)
    for request, name in ((1, "a"), (2, "long")):
        s.say(f"REQ {request} START {s.folder}/{name}.bin 9 1")
    steps = len(s.engine.plans)
    s.say("SCHED_BATCH_DRAIN")
    assert len(s.engine.plans) - steps == 8
    assert all(len(plan.items) == 2 for plan in s.engine.plans[steps:])
    assert s.tokens == {1: s.solo(prompts["a"], 9), 2: s.solo(prompts["long"], 9)}
    assert (s.frames[-1] == (0, DONE)) == (wire is Wire.TAGGED_V2)


def test_a_drain_ends_with_a_frame_of_its_own_in_the_second_version(scene):
    s = scene(Wire.TAGGED_V2)
    s.say(f"REQ 1 START {s.folder}/a.bin 3 1")
    assert s.say("REQ 9 SCHED_DRAIN")[-1] == (9, DONE)
    assert s.texts[-1] == "drain complete"


@pytest.mark.parametrize("command", ["SCHED_STEP", "SCHED_DRAIN", "SCHED_BATCH_DRAIN 3"])
def test_who_has_no_request_is_idle(scene, command):
    s = scene()
    assert s.say(f"REQ 8 {command}") == [(8, DONE)]
    assert s.said == ["idle"]


# -- batches ---------------------------------------------------------------------------------------


def test_a_batched_step_emits_a_token_of_each_aligned_request_in_one_step(scene, prompts):
    s = scene(slots=3)
    for request in (1, 2):
        s.say(f"REQ {request} START {s.folder}/a.bin {request + 1} 1")
    s.say(f"REQ 3 START {s.folder}/b.bin 4 1")
    assert s.say("SCHED_BATCH_PEEK") == [(0, DONE)]
    assert s.said[-1].startswith("batch=2 slots=0,1 position=20 eligible=3 ineligible=0 buckets=2")
    steps = len(s.engine.plans)
    a = s.solo(prompts["a"], 3)
    assert s.say("SCHED_BATCH_TARGET_STEP") == [(1, a[1]), (1, DONE), (2, a[1]), (2, OVER)]
    assert len(s.engine.plans) == steps + 1
    assert s.say("REQ 6 SCHED_BATCH_TARGET_STEP") == [(6, DONE)]
    assert "fewer than two requests are at one position" in s.said[-1]


def test_a_batched_tail_takes_last_tokens_only(scene, prompts):
    s = scene(slots=3)
    for request, total in ((1, 4), (2, 2), (3, 2)):
        s.say(f"REQ {request} START {s.folder}/a.bin {total} 1")
    last = s.solo(prompts["a"], 2)[1]
    assert s.say("SCHED_BATCH_TARGET_TAIL 2") == [(2, last), (2, DONE), (3, last), (3, DONE)]


def test_a_probe_computes_the_next_tokens_of_copies_and_changes_nothing(scene, prompts):
    s = scene(slots=4)
    for request in (1, 2):
        s.say(f"REQ {request} START {s.folder}/a.bin 9 2")
    before = s.engine.view()
    assert s.say("REQ 5 SCHED_BATCH_PROBE") == [(5, DONE)]
    assert s.said[-1] == "probe sequences=2 mismatches=0"
    assert s.engine.view() == before
    s.say(f"REQ 3 START {s.folder}/a.bin 9 2", "SCHED_BATCH_PROBE")
    assert "free slots 0" in s.said[-1], "three copies have no room beside three requests"
    s.say("SCHED_DRAIN")
    assert s.tokens == dict.fromkeys((1, 2, 3), s.solo(prompts["a"], 9))
    s.engine.world.check_idle()


def test_batches_need_tags(scene):
    s = scene(Wire.LEGACY)
    assert s.say("SCHED_BATCH_PEEK") == [(0, DONE)]
    assert "need a tagged stream" in s.said[-1]


# -- cancels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "replies"),
    [("CANCEL 1", [(1, DONE), (0, DONE)]), ("REQ 1 CANCEL", [(1, DONE)])],
)
def test_a_held_request_ends_with_one_frame(scene, line, replies):
    s = scene()
    s.say(f"REQ 1 START {s.folder}/a.bin 9 1")
    assert s.say(line) == replies
    assert s.engine.view() == ()
    assert s.say(line)[-1][1] == DONE, "to cancel twice is no fault"


@pytest.mark.parametrize(
    ("line", "replies"),
    [("CANCEL 1", [(1, DONE), (0, DONE)]), ("REQ 1 CANCEL", [(1, OVER), (1, DONE)])],
)
def test_both_lines_are_answered_when_a_turn_is_cancelled(scene, line, replies):
    s = scene()
    s.send(f"REQ 1 START {s.folder}/a.bin 90 90")
    s.step()
    s.step()
    before = len(s.frames)
    s.send(line)
    assert s.frames[before:] == replies
    s.run()
    assert s.frames[before:] == replies


def test_a_line_that_has_not_begun_is_withdrawn(scene, prompts):
    s = scene(slots=1)
    s.send(f"REQ 1 START {s.folder}/a.bin 3 3", f"REQ 2 START {s.folder}/b.bin 3 3", "CANCEL 2")
    assert s.frames == [(2, DONE), (0, DONE)]
    assert s.said[0] == "err cancelled before it began"
    s.run()
    assert s.tokens == {1: s.solo(prompts["a"], 3)}


# -- lists -----------------------------------------------------------------------------------------


def test_lists_say_where_requests_and_slots_stand(scene, prompts):
    s = scene(slots=2)
    s.say(f"REQ 4 SLOT 1 START {s.folder}/a.bin 5 2")
    s.say("LIST_REQUESTS", "LIST_CACHE_SLOTS", "LIST_SLOTS")
    assert s.said[0] == (
        "requests 1\nreq=4 slot=1 status=held remaining=3 emitted=2 quantum=2 epoch=1"
    )
    pending = s.solo(prompts["a"], 2)[-1]
    assert s.said[1] == (
        f"slots 2\nslot=0 free\nslot=1 req=4 status=held cur_pos=21 last_tok={pending}"
    )
    assert s.said[2] == "snapshots 0"


# -- snapshots -------------------------------------------------------------------------------------


def test_a_prompt_goes_on_from_a_snapshot(scene, prompts):
    s = scene()
    s.say(f"REQ 1 SLOT 1 START {s.folder}/a.bin 9 3")
    assert s.say("REQ 1 SNAPSHOT 5") == [(1, DONE)]
    assert s.say("REQ 2 SLOT 1 SNAPSHOT 6") == [(2, DONE)]
    assert s.said[-2:] == [
        "snapshot=5 length=22 kept=memory",
        "err there is no such request with a slot: REQ <id> SNAPSHOT <n>",
    ]
    s.say("SLOT 1 SNAPSHOT 0", "CANCEL 1")
    s.say("LIST_SLOTS")
    assert s.said[-1] == "snapshots 2\nsnapshot=0 length=22\nsnapshot=5 length=22"
    a = s.solo(prompts["a"], 9)
    longer = (*prompts["a"], *a[:2], 7, 8)
    s.file("longer.bin", longer)
    s.say(f"REQ 3 RESTORE 5 {s.folder}/longer.bin 4")
    assert s.tokens[3] == s.solo(longer, 4)
    assert "reused=22 from=device gen=4" in s.said[-1]
    s.say(f"REQ 4 RESTORE_CHAIN 0 - {s.folder}/longer.bin 4")
    assert s.tokens[4] == s.tokens[3]
    s.say("FREE_SNAPSHOT 5", f"REQ 5 RESTORE 5 {s.folder}/longer.bin 4")
    assert s.said[-1] == "err there is no snapshot 5"


def test_a_snapshot_may_be_taken_inside_a_prompt(scene, prompts):
    s = scene()
    s.say(f"REQ 1 {s.folder}/a.bin 2 snap=18:3", f"REQ 2 RESTORE 3 {s.folder}/a.bin 4")
    assert s.tokens[2] == s.solo(prompts["a"], 4)
    assert "reused=18" in s.said[-1]


def test_a_snapshot_whose_checkpoint_was_dropped_is_computed_again(scene, prompts):
    s = scene(checkpoints=1)
    s.say(f"REQ 1 {s.folder}/a.bin 2 snap=18:3", f"REQ 1 {s.folder}/b.bin 2 snap=9:4")
    s.say(f"REQ 2 RESTORE 3 {s.folder}/a.bin 4")
    assert s.tokens[2] == s.solo(prompts["a"], 4)
    assert "reused=0" in s.said[-1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("RESTORE 3 {folder}/b.bin 4", "must begin with the 18 tokens of snapshot 3"),
        ("RESTORE 9 {folder}/a.bin 4", "there is no snapshot 9"),
        ("RESTORE_CHAIN 3 1,2 {folder}/a.bin 4", "there is no snapshot 1"),
        ("SNAPSHOT_THIN 1 0 64", "no such request with a slot"),
        ("SNAPSHOT 64", "numbered from 0 to 63"),
        ("SNAPSHOT 1", "no such request with a slot"),
        ("FREE_SNAPSHOT 1", "there is no snapshot 1"),
        ("{folder}/a.bin 4 snap=21:1", "checkpoints must lie in the prompt"),
    ],
)
def test_a_snapshot_that_cannot_be_is_refused(scene, line, message):
    s = scene()
    s.say(f"REQ 1 {s.folder}/a.bin 2 snap=18:3")
    assert s.say(line.format(folder=s.folder)) == [(0, DONE)]
    assert message in s.said[-1]


def test_a_snapshot_without_room_is_refused(scene):
    s = scene(checkpoints=0)
    s.say(f"REQ 1 START {s.folder}/a.bin 9 3", "REQ 1 SNAPSHOT 0")
    assert "no room for a checkpoint" in s.said[-1]


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "request_id", "message"),
    [
        ("START {folder}/a.bin 4 2", 0, "START needs a request"),
        ("REQ 3 SLOT 2 START {folder}/a.bin 4 2", 3, "slot 2 is not below 2"),
        ("REQ 3 START {folder}/none.bin 4 2", 3, "cannot be read: No such file"),
        ("REQ 3 START {folder} 4 2", 3, "is no file of token ids"),
        ("REQ 3 START {folder}/odd.bin 4 2", 3, "5 bytes are no 32-bit integers"),
        ("REQ 3 START {folder}/empty.bin 4 2", 3, "0 bytes are no 32-bit integers"),
        ("REQ 3 START {folder}/huge.bin 4 2", 3, "has 513 tokens, the context holds 512"),
        ("REQ 3 START {folder}/big.bin 4 2", 3, "token ids must be between 0 and 28"),
        ("REQ 3 START {folder}/a.bin 493 2", 3, "the context holds 512"),
        ("REQ 3 CONTINUE 4", 3, "there is no request 3"),
        ("REQ 1 SLOT 1 CONTINUE 4", 1, "request 1 is in slot 0"),
        ("REQ 1 START {folder}/a.bin 4 2", 1, "request 1 has not ended"),
        ("REQ 3 SLOT 0 START {folder}/a.bin 4 2", 3, "slot 0 is taken by request 1"),
        ("REQ 3 {folder}/a.bin 4", 3, "slot 0 is taken by request 1"),
        ("SLOT 5 CANCEL 1", 0, "slot 5 is not below 2"),
        ("CANCEL", 0, "CANCEL needs a request"),
        ("park target", 0, "park: requests 1 have not ended"),
        ("compress a 5 b", 0, "this session has nothing that compresses"),
        ("what", 0, "unknown_command 'what'"),
    ],
)
def test_a_mistake_is_one_reply_with_its_reason_and_changes_nothing(
    scene, prompts, line, request_id, message
):
    s = scene(Wire.TAGGED_V2)
    s.file("big.bin", (1, 29))
    s.file("huge.bin", (1,) * 513)
    (s.folder / "odd.bin").write_bytes(b"12345")
    (s.folder / "empty.bin").write_bytes(b"")
    s.say(f"REQ 1 START {s.folder}/a.bin 4 2")
    assert s.say(line.format(folder=s.folder)) == [(request_id, FAILED), (request_id, DONE)]
    assert s.texts[-1].startswith("err ")
    assert message in s.texts[-1]
    s.say("SCHED_DRAIN")
    assert s.tokens == {1: s.solo(prompts["a"], 4)}


# -- files -----------------------------------------------------------------------------------------


def test_tokens_may_go_to_a_file_that_begins_with_their_number(scene, prompts):
    s = scene()
    s.file("in.bin", (len(prompts["a"]), *prompts["a"]))
    out = s.folder / "out.bin"
    assert s.say(f"generate {s.folder}/in.bin 3 {out}") == [(0, DONE)]
    assert struct.unpack("<4i", out.read_bytes()) == (3, *s.solo(prompts["a"], 3))
    for bad in ("no/out.bin", "out\0.bin"):
        s.say(f"generate {s.folder}/in.bin 3 {s.folder}/{bad}")
        assert "cannot be written" in s.said[-1]
    os.mkfifo(s.folder / "pipe")  # which nobody reads
    s.say(f"generate {s.folder}/in.bin 3 {s.folder}/pipe")
    assert "pipe: is no file" in s.said[-1]
    s.say(f"generate {s.folder}/a.bin 3 {out}")
    assert "says 5 tokens and has 19" in s.said[-1]


def test_a_line_says_how_to_sample(scene):
    s = scene()
    s.send(f"REQ 1 START {s.folder}/a.bin 3 3 samp=0.5,0.9,7,1.1,42")
    (request,) = s.engine.world.requests.values()
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 42)


# -- ends ------------------------------------------------------------------------------------------


def test_at_the_end_of_the_lines_turns_and_drains_go_on_and_held_requests_end(scene, prompts):
    s = scene(slots=3)
    s.say(f"REQ 1 START {s.folder}/a.bin 9 1")
    s.send(f"REQ 2 START {s.folder}/b.bin 5 3", "REQ 1 CONTINUE 2")
    s.end()
    assert s.session.over
    assert s.tokens == {1: s.solo(prompts["a"], 3), 2: s.solo(prompts["b"], 3)}
    assert s.frames[-2:] == [(1, DONE), (2, DONE)]
    s.engine.world.check_idle()


def test_a_drain_ends_after_the_lines_have_ended(scene, prompts):
    s = scene()
    s.send(f"REQ 1 START {s.folder}/a.bin 9 1", "SCHED_DRAIN")
    s.end()
    assert s.session.over
    assert s.tokens == {1: s.solo(prompts["a"], 9)}


def test_quit_comes_after_the_lines_before_it_and_stops_a_drain(scene, prompts):
    s = scene()
    s.send(f"REQ 1 START {s.folder}/a.bin 9 2", "SCHED_DRAIN", "REQ 6 quit", "REQ 7 LIST_REQUESTS")
    s.run()
    assert s.session.over
    a = s.solo(prompts["a"], 2)
    assert s.frames == [
        (0, DONE),
        *((1, a[0]), (1, a[1]), (1, OVER)),
        *((7, DONE), (1, DONE), (6, DONE)),
    ]
    s.engine.world.check_idle()


def test_an_abandoned_session_leaves_nothing_behind(scene):
    s = scene()
    s.send(f"REQ 1 START {s.folder}/a.bin 9 2", f"REQ 2 START {s.folder}/long.bin 9 2")
    s.step()
    s.session.abandon()
    s.settle()
    assert s.session.over
    s.engine.world.check_idle()
