"""Files of benchmarks: removed after each, or written once into a folder and kept there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

PLAN = SimpleNamespace(shape=SimpleNamespace(name="shape"), mix="q4_k_m", layers=3)


@pytest.fixture
def files(repo, monkeypatch):
    """The module, with a writer that notes what it writes."""
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    import model_files

    written = []

    def write(plan, path):
        written.append(path)
        path.write_text("model")

    monkeypatch.setattr(model_files, "write_synthetic", write)
    monkeypatch.delenv(model_files.FOLDER, raising=False)
    model_files.written = written
    return model_files


def test_a_file_is_removed_after_the_benchmark(files):
    with files.model_file(PLAN) as path:
        assert path.read_text() == "model"
    assert not path.exists()
    assert files.written == [path]


def test_a_kept_file_is_written_once(files, monkeypatch, tmp_path):
    monkeypatch.setenv(files.FOLDER, str(tmp_path / "kept"))
    for _ in range(2):
        with files.model_file(PLAN) as path:
            assert path == tmp_path / "kept" / "shape-q4_k_m-3.gguf"
    assert len(files.written) == 1
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_was_being_written_is_no_file(files, monkeypatch, tmp_path):
    monkeypatch.setenv(files.FOLDER, str(tmp_path))

    def fail(plan, path):
        raise OSError("the disk is full")

    monkeypatch.setattr(files, "write_synthetic", fail)
    with pytest.raises(OSError, match="full"), files.model_file(PLAN):
        pass
    assert not list(tmp_path.iterdir())
