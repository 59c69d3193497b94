"""Faults at what moves kept state: at operations of the disk, in the disk's thread, and in the
middle of copies to and from the host. At most one answer fails, none is wrong, and nothing is left
over."""

from __future__ import annotations

from collections import Counter

import host_scenes
import prefix_scenes
import pytest

from kinfolk.engine.disk_tier import salt_record
from kinfolk.engine.loading import load_model
from kinfolk.sched.request import FinishReason
from kinfolk.settings import load_settings
from kinfolk.state import disk as disk_module
from kinfolk.state import state as state_module
from kinfolk.state.copies import Copies
from kinfolk.state.disk import DiskCache
from kinfolk.state.disk_folder import SaltFolder
from kinfolk.state.operations import FetchSaved, SpillSaved
from kinfolk.state.state import State

NEAR = 2e-3
"""Slices of other lengths round otherwise: 4e-4 of the largest logit, in log-probability."""

CHATS, MESSAGE, ANSWER = 3, 70, 3
FAULT = "a bit has flipped"
LARGE = 1 << 30


@pytest.fixture(scope="module")
def loaded(registry, cases):
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 1, "draft": "off"}
    settings = load_settings(checkpoints=2, cache_memory=0.25, **options)
    return load_model(cases / "qwen35.gguf", settings, registry)


def scene(loaded, text, folder, *, limit=LARGE, after=None):
    """Chats of two turns, and a third turn of each with a new engine on the same folder. What fails
    is asked for again. Returns log-probabilities, errors of requests that failed, and where the
    prefixes of the third turns came from. ``after``: what the chats are to have heard."""
    record = salt_record(loaded, prefix_scenes.SLICE)
    chats = [host_scenes.Chat(n, text, loaded.info.vocabulary) for n in range(CHATS)]
    said, failed, places = [], [], []
    for turns in (2, 1):
        disk = DiskCache.open(folder, record, limit)
        with host_scenes.opened(loaded, disk) as engine:  # recounts at the end
            for chat in chats * turns:
                request = chat.next(MESSAGE, ANSWER)
                *events, end = engine.submit(request)
                if end.reason is FinishReason.ERROR:
                    failed.append(end.error)
                    *events, end = engine.submit(request)
                assert end.reason is FinishReason.LENGTH
                said.append([each for event in events for each in event.logprobs])
                places.append(end.usage.reused_from)
                chat.heard(said[-1] if after is None else after[len(said) - 1])
            assert engine.stats()["running"] == engine.stats()["waiting"] == 0
    return said, failed, places[-CHATS:]


class Watched:
    """Counts what is executed by name; ``fault`` is the how many-th of a name that fails."""

    def __init__(self):
        self.seen = Counter()
        self.fault = None

    def passes(self, name):
        self.seen[name] += 1
        return self.fault != (name, self.seen[name])

    def check(self, name):
        if not self.passes(name):
            raise RuntimeError(FAULT)


@pytest.fixture(scope="module")
def watched():
    found = Watched()
    apply, save, load, read = State.apply, Copies.save, Copies.load, DiskCache.read
    write_entry, copy_bytes, way = disk_module.write_entry, state_module.copy_bytes, [""]

    def operations(state, given, **how):
        def each():
            for operation in given:
                if isinstance(operation, SpillSaved | FetchSaved):
                    found.check(type(operation).__name__)
                yield operation

        apply(state, each(), **how)

    def copies(method, name):
        def enqueued(copies, places, action, nbytes):
            def named():
                way[0] = name
                return action()

            return method(copies, places, named, nbytes)

        return enqueued

    def half(sources, targets):
        sources = list(sources)
        whole = found.passes(f"{way[0]}: half of the bytes")
        copy_bytes(sources if whole else [part[: len(part) // 2] for part in sources], targets)
        if not whole:
            raise RuntimeError(FAULT)

    def read_point(cache, request):
        whole = read(cache, request)
        found.check("the disk: all read")
        return whole

    def write(*arguments):
        write_entry(*arguments)
        found.check("the disk: a file written")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(State, "apply", operations)
        patch.setattr(Copies, "save", copies(save, "save"))
        patch.setattr(Copies, "load", copies(load, "load"))
        patch.setattr(state_module, "copy_bytes", half)
        patch.setattr(DiskCache, "read", read_point)
        patch.setattr(disk_module, "write_entry", write)
        yield found


@pytest.fixture(scope="module")
def whole(loaded, text, tmp_path_factory, watched):
    """The answers without a fault, how often each thing is done for them, and bytes of files."""
    folder = tmp_path_factory.mktemp("whole")
    said, failed, places = scene(loaded, text, folder)
    assert (failed, places) == ([], ["disk"] * CHATS)
    return said, watched.seen, nbytes_in(folder)


def nbytes_in(folder):
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


COSTS = {
    "SpillSaved": 1,
    "FetchSaved": 1,
    "save: half of the bytes": 1,
    "load: half of the bytes": 1,
    "the disk: all read": 0,
    "the disk: a file written": 0,
}
"""Most answers that a fault costs."""


@pytest.mark.parametrize("name", COSTS)
def test_a_fault_costs_at_most_one_answer_and_none_is_wrong(
    loaded, text, tmp_path, watched, whole, name
):
    expected, seen, _ = whole
    for last in sorted({1, seen[name]}):
        number = last
        while True:
            watched.fault, watched.seen = (name, number), Counter()
            folder = tmp_path / f"{number} of {last}"
            said, failed, places = scene(loaded, text, folder, after=expected)
            assert watched.seen[name] > 0, "the fault did not happen"
            if watched.seen[name] >= number:
                break
            # How much is moved depends on how far the disk's thread has come.
            number = watched.seen[name]
        assert failed in ([], [f"RuntimeError: {FAULT}"][: COSTS[name]])
        assert "disk" in places, "what was not hit by the fault is there"
        for turn, (found, other) in enumerate(zip(said, expected, strict=True)):
            prefix_scenes.assert_near(found, other, NEAR, turn)


@pytest.mark.parametrize("method", ["remove_point", "remove_chunk"])
def test_what_cannot_be_deleted_costs_no_answer_and_the_limit_holds(
    loaded, text, tmp_path, watched, whole, monkeypatch, caplog, method
):
    expected, _, nbytes = whole
    limit, refused = nbytes // 2, []
    watched.fault = None

    def refuse(folder, *place):
        refused.append(place)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(SaltFolder, method, refuse)
    said, failed, _ = scene(loaded, text, tmp_path / "small", limit=limit, after=expected)
    assert refused, "nothing was to be deleted"
    assert failed == []
    assert [r.message for r in caplog.records if "Input/output error" in r.message]
    assert nbytes_in(tmp_path / "small") <= limit
    for turn, (found, other) in enumerate(zip(said, expected, strict=True)):
        prefix_scenes.assert_near(found, other, NEAR, turn)
