"""The grammar of lines: every form, every mistake, and no line that raises anything else."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kinfolk.daemon.commands import (
    Batch,
    BatchCommand,
    CancelCommand,
    CompressCommand,
    ContinueCommand,
    DrainCommand,
    FreeDrafterCommand,
    FreeSnapshotCommand,
    GenerateCommand,
    Line,
    ListCommand,
    Listing,
    ParkCommand,
    QuitCommand,
    Restore,
    SnapshotCommand,
    StartCommand,
    StepCommand,
)
from kinfolk.daemon.grammar import LineError, parse
from kinfolk.sched.request import Sampling

START = StartCommand("/p/a.bin", 4, 2)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("REQ 4 SLOT 0 START /p/a.bin 4 2", Line(START, 4, 0)),
        ("REQUEST 4 SLOT 0 START /p/a.bin 4 2", Line(START, 4, 0)),
        ("REQ=4 SLOT=0 START /p/a.bin 4 2", Line(START, 4, 0)),
        ("REQ = 4 slot = 0\tstart /p/a.bin 4 2\r\n", Line(START, 4, 0)),
        ("req\t4\tSTART /p/a.bin 4 2", Line(START, 4)),
        ("REQ 4START /p/a.bin 4 2", Line(START, 4)),
        ("START /a folder/b.bin 4 2", Line(StartCommand("/a folder/b.bin", 4, 2))),
        ("REQ 1073741823 SCHED_STEP", Line(StepCommand(), 0x3FFFFFFF)),
        ("REQ 0 SCHED_DRAIN", Line(DrainCommand())),
        ("CONTINUE 5", Line(ContinueCommand(5))),
        ("CONT=5", Line(ContinueCommand(5))),
        ("cont\t5", Line(ContinueCommand(5))),
        ("SCHED_BATCH_PEEK", Line(BatchCommand(Batch.PEEK))),
        ("SCHED_BATCH_PROBE 3", Line(BatchCommand(Batch.PROBE, 3))),
        ("SCHED_BATCH_TARGET_TAIL 2", Line(BatchCommand(Batch.TAIL, 2))),
        ("sched_batch_target_step", Line(BatchCommand(Batch.STEP))),
        ("SCHED_BATCH_DRAIN 8", Line(DrainCommand(batched=True, most=8))),
        ("LIST_REQUESTS", Line(ListCommand(Listing.REQUESTS))),
        ("LIST_TARGET_CACHE_SLOTS", Line(ListCommand(Listing.CACHE_SLOTS))),
        ("LIST_CACHE_SLOTS", Line(ListCommand(Listing.CACHE_SLOTS))),
        ("LIST_SLOTS", Line(ListCommand(Listing.SNAPSHOTS))),
        ("CANCEL 7", Line(CancelCommand(7))),
        ("REQ 7 CANCEL", Line(CancelCommand(None), 7)),
        ("SLOT 1 SNAPSHOT 3", Line(SnapshotCommand(3), 0, 1)),
        ("SNAPSHOT_THIN 3 0 64", Line(SnapshotCommand(3, (0, 64)))),
        ("FREE_SNAPSHOT 3", Line(FreeSnapshotCommand(3))),
        ("RESTORE 3 ./b.bin 9", Line(GenerateCommand("./b.bin", 9, restore=Restore(3)))),
        ("RESTORE 3 b 9 snap=5:1", Line(GenerateCommand("b", 9, restore=Restore(3), keep=(5, 1)))),
        ("RESTORE_CHAIN 1 2,3 /b 9", Line(GenerateCommand("/b", 9, restore=Restore(1, (2, 3))))),
        ("RESTORE_CHAIN -1 - /b 9", Line(GenerateCommand("/b", 9))),
        ("/p/a.bin 5", Line(GenerateCommand("/p/a.bin", 5))),
        ("a/b c.bin 5 snap=4:0", Line(GenerateCommand("a/b c.bin", 5, keep=(4, 0)))),
        ("START/a.bin 5", Line(GenerateCommand("START/a.bin", 5))),
        ("generate in.bin 5 out.bin", Line(GenerateCommand("in.bin", 5, out="out.bin"))),
        ("park", Line(ParkCommand("all", back=False))),
        ("unpark draft", Line(ParkCommand("draft", back=True))),
        ("park --drain", Line(ParkCommand("all", back=False, drain=True))),
        ("PARK target --drain", Line(ParkCommand("target", back=False, drain=True))),
        ("free drafter", Line(FreeDrafterCommand())),
        ("drafter free", Line(FreeDrafterCommand())),
        ("compress a.bin 250 s.gguf nopark", Line(CompressCommand("a.bin", 250, "s.gguf", False))),
        ("compress a b\t250\ts t.gguf", Line(CompressCommand("a b", 250, "s t.gguf"))),
        ("quit", Line(QuitCommand())),
        ("exit", Line(QuitCommand())),
    ],
)
def test_every_form_of_a_line_is_read(line, expected):
    assert parse(line) == expected


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("samp=0.7,0.9,40,1.1,5", Sampling(0.7, 40, 0.9, repetition_penalty=1.1, seed=5)),
        (
            "samp=0,1,0,1,0,0.5,-1",
            Sampling(frequency_penalty=0.5, presence_penalty=-1),
        ),
    ],
)
def test_a_line_that_generates_may_say_how_to_sample(tail, expected):
    assert parse(f"START /a 4 2 {tail}").command.sampling == expected
    assert parse(f"./a 4 {tail}").command.sampling == expected
    assert parse(f"RESTORE_CHAIN -1 - /a 4 {tail}").command.sampling == expected


@pytest.mark.parametrize(
    ("line", "request_id", "message"),
    [
        ("", 0, "the line is empty"),
        ("REQ", 0, "needs a number and a command"),
        ("REQUEST 5", 0, "has no command"),
        ("REQ x START /a 1 1", 0, "REQ needs a number"),
        ("REQ -4 START /a 1 1", 0, "REQ needs a number"),
        ("REQ 1073741824 START /a 1 1", 0, "1073741824 is not between 0 and 1073741823"),
        ("REQ 4 SLOT 2", 4, "SLOT 2 has no command"),
        ("REQ 4 SLOT 1025 SCHED_STEP", 4, "1025 is not between 0 and 1024"),
        ("SLOT 1 REQ 4 SCHED_STEP", 0, "unknown_command 'REQ'"),
        ("REQ 4 START /a 4", 4, "write START <path> <total> <quantum>"),
        ("REQ 4 START /a 0 2", 4, "total: 0 is not between 1"),
        ("REQ 4 START /a 4 0", 4, "quantum: 0 is not between 1"),
        ("CONTINUE", 0, "CONTINUE: '' is no whole number"),
        ("CONTINUE -3", 0, "'-3' is no whole number"),
        ("CONTINUE ٣", 0, "is no whole number"),
        ("CONTINUE " + "9" * 5000, 0, "is no whole number"),
        ("CANCEL 0", 0, "CANCEL: 0 is not between 1"),
        ("SCHED_STEP 4", 0, "SCHED_STEP stands alone"),
        ("SCHED_BATCH_PEEK 0", 0, "0 is not between 1"),
        ("RESTORE_CHAIN 1 2,,3 /b 9", 0, "RESTORE_CHAIN: '' is no whole number"),
        ("RESTORE_CHAIN 1 2,3x /b 9", 0, "RESTORE_CHAIN: '3x' is no whole number"),
        ("SNAPSHOT_THIN 1 5 5", 0, "no range of positions"),
        ("./a 5 snap=4", 0, "write snap=<position>:<snapshot>"),
        ("./a", 0, "write <path> <count>"),
        ("hello 5", 0, "unknown_command 'hello'"),
        ("park everything", 0, "park takes all, target or draft"),
        ("unpark --drain", 0, "unpark takes all, target or draft"),
        ("free me", 0, "write free drafter"),
        ("compress a 0 s", 0, "compress: 0 is not between 1 and 1000"),
        ("LIST_SLOTS samp=0,1,0,1,0", 0, "samp= belongs to a line that generates"),
        ("./a 5 samp=1,2", 0, "samp= has 5 or 7 numbers"),
        ("./a 5 samp=a,1,0,1,0", 0, "not all of these are numbers"),
        ("./a 5 samp=nan,1,0,1,0", 0, "temperature must be"),
    ],
)
def test_a_mistake_is_named_and_belongs_to_the_request_of_its_header(line, request_id, message):
    with pytest.raises(LineError) as caught:
        parse(line)
    assert message in str(caught.value)
    assert caught.value.request == request_id


WORDS = """
    REQ REQUEST SLOT START CONTINUE CONT SCHED_STEP SCHED_BATCH_DRAIN CANCEL RESTORE
    RESTORE_CHAIN SNAPSHOT park free generate compress = 4 0 -1 1,2 /a ./b snap=1:2
    samp=0,1,0,1,0 ٣
"""


@given(
    st.one_of(
        st.text(max_size=60), st.lists(st.sampled_from(WORDS.split()), max_size=8).map(" ".join)
    )
)
@example("REQ=")
@example("SLOT\x00 1")
def test_a_line_is_a_command_or_an_error(line):
    try:
        found = parse(line)
    except LineError:
        return
    assert isinstance(found, Line)
    assert 0 <= found.request < 2**30
    assert found.slot is None or 0 <= found.slot <= 1024
