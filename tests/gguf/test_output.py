"""A written file reads back equal, and no half-written file ever has the final name."""

from __future__ import annotations

import threading

import gguf
import numpy as np
import pytest

from kinfolk.errors import CapacityError, OutputError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, Job, OutputTensor

METADATA = {
    "general.architecture": "tiny",
    "general.name": "a name",
    "tiny.count": 3,
    "tiny.negative": -3,
    "tiny.rate": 0.25,
    "tiny.flag": False,
    "tiny.blank": "",
    "tiny.heads": [1, 2, 3],
    "tiny.rates": [0.5, -0.5],
    "tiny.flags": [True, False],
    "tiny.texts": ["a", "", "ž"],
}
Q = OutputTensor("q", (2, 2, 32), 8, 4 * 34)
V = OutputTensor("v", (3,), 0, 12)


def numbered(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.uint8)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.gguf"


def test_metadata_and_tensors_come_back(path):
    with GGUFOutput(path, METADATA, [Q, V]) as out:
        out.write("v", numbered(12))
        out.write("q", numbered(136))
    with GGUFFile.open(path) as file:
        assert list(file.metadata) == list(METADATA)
        for key, value in METADATA.items():
            content = file.metadata.value(key).content
            assert (list(content) if isinstance(value, list) else content) == value
        assert (file.inventory["q"].shape, file.inventory["q"].type_name) == ((2, 2, 32), "Q8_0")
        assert file.inventory.bytes("q").tobytes() == numbered(136).tobytes()
        assert file.inventory.bytes("v").tobytes() == numbered(12).tobytes()


def test_gguf_py_reads_the_file_too(path):
    with GGUFOutput(path, METADATA, [Q]) as out:
        out.write("q", numbered(136))
    reader = gguf.GGUFReader(path)
    assert reader.fields["tiny.heads"].contents() == [1, 2, 3]
    assert reader.tensors[0].data.tobytes() == numbered(136).tobytes()


def test_jobs_of_several_threads_make_the_whole_and_progress_reaches_the_total(path):
    starts = range(0, 136, 17)
    jobs = [Job("q", start, lambda s=start: numbered(136)[s : s + 17]) for start in starts]
    seen = []
    with GGUFOutput(path, METADATA, [Q]) as out:
        out.run(jobs, workers=2, progress=lambda *done_total: seen.append(done_total))
    with GGUFFile.open(path) as file:
        assert file.inventory.bytes("q").tobytes() == numbered(136).tobytes()
    assert seen == sorted(seen)
    assert seen[-1] == (136, 136)


def test_a_failing_job_ends_the_run_with_its_own_exception(path):
    def fail():
        raise RuntimeError("boom")

    threads = threading.active_count()

    with pytest.raises(RuntimeError, match="boom"), GGUFOutput(path, METADATA, [V]) as out:
        out.run([Job("v", 0, fail)], workers=2)
    assert list(path.parent.iterdir()) == []
    assert threading.active_count() == threads


def test_the_final_name_appears_only_when_the_file_is_complete(path):
    with GGUFOutput(path, METADATA, [V]) as out:
        out.write("v", numbered(12))
        assert not path.exists()
        assert out.partial.exists()
    assert list(path.parent.iterdir()) == [path]


def test_an_interruption_leaves_what_was_there_before(path):
    path.write_bytes(b"what was there before")

    def interrupted():
        with GGUFOutput(path, METADATA, [V], overwrite=True) as out:
            out.write("v", numbered(12))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"what was there before"
    assert list(path.parent.iterdir()) == [path]


def test_one_process_at_a_time_writes_a_file(path):
    """The second one neither writes into the first one's file nor removes it."""
    with GGUFOutput(path, METADATA, [V]) as first:
        with pytest.raises(OutputError, match="another process is writing it"):
            GGUFOutput(path, METADATA, [V]).__enter__()
        first.write("v", numbered(12))
    assert sorted(path.parent.iterdir()) == [path]
    with GGUFOutput(path, METADATA, [V], overwrite=True) as again:
        again.write("v", numbered(12))
    assert sorted(path.parent.iterdir()) == [path]


def test_a_partial_file_of_a_killed_process_is_replaced(path):
    path.with_name(path.name + ".partial").write_bytes(b"x" * 100_000)
    with GGUFOutput(path, METADATA, [V]) as output:
        output.write("v", numbered(12))
    with GGUFFile.open(path) as file:
        assert bytes(file.inventory.bytes("v")) == bytes(range(12))
    assert path.stat().st_size < 10_000


def test_a_tensor_that_is_not_complete_is_named(path):
    with (
        pytest.raises(ValueError, match="not written in full: v"),
        GGUFOutput(path, METADATA, [V]) as out,
    ):
        out.write("v", numbered(8))
    assert list(path.parent.iterdir()) == []


def test_more_bytes_than_a_tensor_has_are_refused(path):
    with (
        pytest.raises(ValueError, match="more bytes than tensor 'v' has"),
        GGUFOutput(path, METADATA, [V]) as out,
    ):
        out.write("v", numbered(13))
    assert list(path.parent.iterdir()) == []


def test_an_existing_file_is_overwritten_only_when_asked(path):
    path.write_bytes(b"old")
    with pytest.raises(OutputError, match="exists; choose another name"):
        GGUFOutput(path, METADATA, [V]).__enter__()
    assert path.read_bytes() == b"old"


def test_places_that_cannot_be_written_are_named(tmp_path):
    with pytest.raises(OutputError, match="does not exist; create it first"):
        GGUFOutput(tmp_path / "none" / "out.gguf", METADATA, [V]).__enter__()
    with pytest.raises(OutputError, match="is a directory"):
        GGUFOutput(tmp_path, METADATA, [V]).__enter__()


def test_a_file_larger_than_the_disk_is_refused_with_the_arithmetic(path):
    huge = OutputTensor("huge", (2**40, 32), 8, 2**40 * 34)
    with pytest.raises(CapacityError, match=r"needs 37383\.\d+ GB, but only .* GB are free"):
        GGUFOutput(path, METADATA, [huge]).__enter__()
    assert list(path.parent.iterdir()) == []
