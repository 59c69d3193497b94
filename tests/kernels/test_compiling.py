"""What is said while kernels are compiled."""

from __future__ import annotations

import sys

import pytest
from triton import knobs

from kinfolk_kernels.compiling import CompilationNotes, announce_compilations


def test_kernels_that_were_kept_are_not_worth_a_word():
    said = []
    notes = CompilationNotes(said.append)
    notes(cache_hit=True, times=None)
    assert said == []


def test_the_first_is_announced_and_then_a_line_comes_now_and_then():
    said, now = [], [0.0]
    notes = CompilationNotes(said.append, lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        notes(cache_hit=False)
    assert said == [
        "compiling kernels for this GPU, once: they are kept for the next start",
        "6 kernels compiled",
        "11 kernels compiled",
    ]


def test_another_listener_stays(monkeypatch):
    monkeypatch.setattr(knobs.compilation, "listener", None)
    announce_compilations(print)
    ours = knobs.compilation.listener
    assert isinstance(ours, CompilationNotes)
    announce_compilations(print)
    assert knobs.compilation.listener is ours


def test_nothing_is_said_where_there_is_no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    announce_compilations(pytest.fail)
