"""Who reads a stream, or does not any more, while nothing is written to it."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from kinfolk.daemon.hang_up import watching


@pytest.fixture
def gone():
    return threading.Event()


def test_the_reader_of_a_pipe_that_closes_it_is_noticed(gone):
    reader, writer = os.pipe()
    with watching(writer, gone.set):
        assert not gone.wait(0.02)
        os.close(reader)
        assert gone.wait(60)
    os.close(writer)


def test_a_client_that_has_sent_all_its_lines_still_reads(gone):
    ours, client = socket.socketpair()
    with ours, watching(ours.fileno(), gone.set):
        client.sendall(b"LIST_REQUESTS\n")
        client.shutdown(socket.SHUT_WR)
        assert not gone.wait(0.02)
        client.close()
        assert gone.wait(60)


@pytest.mark.parametrize("name", [os.devnull, "file", None])
def test_what_has_no_reader_is_never_lost(gone, tmp_path, name):
    path = tmp_path / "file" if name == "file" else name
    stream = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT)
    with watching(stream, gone.set):
        assert not gone.wait(0.02)
    if stream is not None:
        os.close(stream)
