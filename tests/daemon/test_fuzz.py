"""Any lines, steps and faults in any order: every line is answered once, and nothing is lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talk import eventually
from wire_scenes import Scene

from kinfolk.daemon.frames import Wire
from kinfolk.daemon.grammar import LineError, parse

DONE, OVER, FAILED = -1, -4, -5

LINES = """
REQ {r} START {d}/a.bin {t} {q}
REQ {r} START {d}/b.bin {t} {q}
REQ {r} SLOT {s} START {d}/a.bin {t} {q}
REQUEST={r} START {d}/long.bin {t} {q}
REQ {r} CONTINUE {q}
REQ {r} SLOT {s} CONT={q}
REQ {r} SLOT {s} {d}/b.bin {q}
{d}/a.bin {q}
CANCEL {r}
REQ {r} CANCEL
REQ 77 SCHED_STEP
REQ 77 SCHED_DRAIN
REQ 77 SCHED_BATCH_DRAIN {q}
REQ 77 SCHED_BATCH_PEEK
REQ 77 SCHED_BATCH_TARGET_STEP {q}
REQ 77 SCHED_BATCH_TARGET_TAIL
REQ 77 LIST_REQUESTS
REQ 77 LIST_TARGET_CACHE_SLOTS
REQ 77 park
REQ 77 park target --drain
REQ 77 unpark
REQ 77 unpark draft
REQ 77 SNAPSHOT {s}
REQ 77 SNAPSHOT_THIN {s} 0 {q}
REQ {r} SNAPSHOT_THIN {s} {q} 21
REQ {r} {d}/a.bin {q} snap={t}:{s}
REQ {r} RESTORE {s} {d}/a.bin {q}
REQ {r} RESTORE_CHAIN -1 {s} {d}/a.bin {q}
REQ 77 FREE_SNAPSHOT {s}
REQ {r} START {d}/none.bin {t} {q}
REQ {r}
REQ {r} START
nonsense {r}
""".strip().splitlines()


class Client:
    """Speaks at random, and keeps count of what must be answered."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.random = random.Random(seed)
        self.sent: list[str] = []

    def line(self) -> str:
        pick = self.random.choice
        if self.random.random() < 0.05:
            return "".join(chr(self.random.randrange(1, 300)) for _ in range(12)).replace("\n", "")
        line = pick(LINES).format(
            r=pick([1, 2, 3, 4]),
            s=pick([0, 1, 2]),
            t=pick([1, 2, 5, 9]),
            q=pick([1, 2, 7, 99]),
            d=self.scene.folder,
        )
        return line if self.random.random() < 0.95 else line[: self.random.randrange(len(line))]

    def speak(self) -> None:
        line = self.line()
        self.sent.append(line)
        self.scene.send(line)


def terminals(scene: Scene) -> int:
    return sum(word in (DONE, OVER) for _, word in scene.frames)


def check_streams(scene: Scene) -> None:
    """Between two ends of a stream stands a beginning of what its request would say alone."""
    world, expected = scene.engine.world, Counter()
    for request_id, stream in world.streams.items():
        request = world.requests[request_id]
        solo = world.expected(request)
        assert stream == solo[: len(stream)]
        expected.update(stream)
    assert Counter(word for _, word in scene.frames if word >= 0) == expected


def run_client(scene: Scene, count: int, seed: int) -> None:
    client = Client(scene, seed)
    for _ in range(count):
        client.speak()
        for _ in range(client.random.choice([0, 0, 1, 3, 20])):
            failing = frozenset()
            if client.random.random() < 0.02:
                failing = frozenset(list(scene.engine.world.scheduler.alive)[:1])
            scene.engine.burn = client.random.random() < 0.005
            scene.step(failing=failing)
    scene.engine.burn = False
    scene.end()
    assert scene.session.over
    assert scene.session.waiting == 0
    check_streams(scene)
    scene.engine.world.check_idle()
    check_answers(scene, client.sent)


def check_answers(scene: Scene, lines: list[str]) -> None:
    """One terminal for each line, and one more for each request that ended between its turns: it
    was cancelled, or failed, or held when the lines ended. A cancelled turn of its own header has
    both already."""
    answers = terminals(scene)
    drains = sum("SCHED_DRAIN" in line or "SCHED_BATCH" in line for line in lines)
    requests = len(scene.engine.world.requests)
    turns = sum(len(plan.items) for plan in scene.engine.plans)
    assert len(lines) - drains <= answers <= len(lines) + requests + turns


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("max_queue", [0, 2])
@pytest.mark.parametrize("lines", [600, pytest.param(10_000, marks=pytest.mark.long)])
def test_random_lines_are_all_answered_and_nothing_hangs(tmp_path, wire, max_queue, lines):
    for seed in range(lines // 100):
        scene = Scene(tmp_path, wire, slots=3, max_queue=max_queue, quality=0.7, max_draft=4)
        for name, length in (("a", 20), ("b", 11), ("long", 70)):
            scene.file(f"{name}.bin", tuple(number * number % 29 for number in range(length)))
        run_client(scene, 100, seed)


class EveryThird:
    """Compresses at once; its thread is as late as it likes."""

    parks = False

    def compress(self, path, tokens, ratio, *, park):
        return tokens[::3]

    def free(self):
        pass


# -- exactly one reply -----------------------------------------------------------------------------

STEPWISE = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from([0, 1, 2, 300])), min_size=1, max_size=25
)


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(script=STEPWISE, max_queue=st.sampled_from([0, 2]))
def test_lines_of_different_ids_have_one_terminal_reply_each(tmp_path_factory, script, max_queue):
    """Each line has an id of its own, so that its replies can be told from those of others."""
    options = {"slots": 3, "max_queue": max_queue, "compressor": EveryThird()}
    scene = Scene(tmp_path_factory.mktemp("wire"), Wire.TAGGED_V2, **options)
    scene.file("a.bin", tuple(range(20)))
    kinds = [
        "START {d}/a.bin 5 2",
        "START {d}/a.bin 3 3",
        "START {d}/a.bin 90 30",
        "{d}/a.bin 4",
        "CANCEL {other}",
        "CANCEL {other}",
        "LIST_REQUESTS",
        "SCHED_DRAIN",
        "SCHED_BATCH_DRAIN",
        "SCHED_BATCH_PEEK",
        "CONTINUE 4",
        "compress {d}/a.bin 300 small.gguf",
        "compress {d}/a.bin 300 small.gguf nopark",
        "free drafter",
        "bad",
    ]
    for number, (pick, steps) in enumerate(script, start=1):
        other = max(1, number - 1 - pick // 10 % 4)  # one that may still live
        line = kinds[pick % len(kinds)].format(d=scene.folder, other=other)
        scene.send(f"REQ {number} {line}")
        for _ in range(steps):
            if not scene.step() and not scene.step():
                break
    scene.end()
    eventually(lambda: scene.run() or scene.session.over)
    found = Counter(request for request, word in scene.frames if word == DONE)
    assert found == dict.fromkeys(range(1, len(script) + 1), 1)
    scene.engine.world.check_idle()


@given(st.text(max_size=40))
def test_whatever_is_no_command_has_one_failed_reply(tmp_path_factory, text):
    text = text.replace("\n", " ")
    request = None
    try:
        parse(text)
    except LineError as error:
        request = error.request
    if request is not None:
        scene = Scene(tmp_path_factory.getbasetemp(), Wire.TAGGED_V2)
        assert scene.say(text) == [(request, FAILED), (request, DONE)]
