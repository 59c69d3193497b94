"""Chats in turn, for tests of checkpoints that leave the device; on the CPU and on the GPU."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import prefix_scenes

from kinfolk.engine.engine import Engine
from kinfolk.sched.request import Request, Sampling

HEADER = 3
"""Tokens behind the last message of a prompt, which a template repeats in the next turn."""


class Chat:
    """A conversation of random messages."""

    def __init__(self, name, text, vocabulary):
        self.name, self.known, self.turn = name, [], 0
        self.text = [token % vocabulary for token in text]

    def next(self, message, answer):
        start = (31 * self.turn + 17 * self.name) % len(self.text)
        tokens = [self.text[(start + 3 * i) % len(self.text)] for i in range(message + HEADER)]
        self.prompt = (*self.known, *tokens)
        self.turn += 1
        return Request(
            f"{self.name}.{self.turn}",
            self.prompt,
            answer,
            Sampling(logprobs=4),
            checkpoints=(len(self.prompt) - HEADER,),
            keep=True,
        )

    def heard(self, logprobs):
        self.known = [*self.prompt, *(each.token for each in logprobs)]


@contextmanager
def opened(model, disk=None):
    engine = Engine(model, prefix_scenes.limits_of(model), disk=disk)
    try:
        yield engine
    finally:
        engine.close()
    engine.check_integrity()


def answered(engine, request):
    """Log-probabilities of the answer, and its end."""
    *events, end = engine.submit(request)
    assert end.error is None
    return [each for event in events for each in event.logprobs], end


def talk(engine, chats, turns, message, answer, *, after=None):
    """All chats in turn; returns log-probabilities and usage of each answer."""
    said = []
    for _ in range(turns):
        for chat in chats:
            logprobs, end = answered(engine, chat.next(message, answer))
            said.append((logprobs, end.usage))
            chat.heard(logprobs if after is None else after[len(said) - 1][0])
    return said


def few_and_many(few, text):
    """What eight chats hear with a model whose checkpoints go to host memory, and with one that
    has places for all of them on the device."""
    blocks = tuple(16 * size for size in few.limits.blocks)
    many = replace(few, limits=replace(few.limits, checkpoints=64, blocks=blocks, host_bytes=0))
    said = []
    for loaded in (few, many):
        chats = [Chat(n, text, loaded.info.vocabulary) for n in range(8)]
        with opened(loaded) as engine:
            said.append(talk(engine, chats, turns=2, message=22, answer=4))
            stats = engine.stats()
        assert (stats["demotions"] > 10) == (loaded is few)
        assert (stats["host_rows"] > 10) == (loaded is few)
        assert (stats["loads"] > 0) == (loaded is few)
    return said
