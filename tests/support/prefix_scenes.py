"""Scenes for tests of reused prefixes, on the CPU and on the GPU."""

from __future__ import annotations

from contextlib import ExitStack

from kinfolk.engine.engine import Engine
from kinfolk.sched.events import Emitted
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request, Sampling

SLICE = 32
ENDING = 5


def prefixes(loaded, plain, text, lengths, near, exact=None):
    """Requests whose first n tokens are reused, for every n of ``lengths``, against the same ones
    computed as a whole by ``plain``, which keeps no checkpoints.

    Where reuse begins on the grid of slices, the steps are the same, and so are all numbers. Else
    log-probabilities differ by at most ``near``, and a token only where the two best are that near.
    Those of a reused prefix are as near to those of ``exact``, a model in float32, as those of the
    whole prompt: the root mean square of the differences is at most 1.5 times theirs.
    """
    errors = Errors(), Errors()
    with ExitStack() as stack:
        reusing, whole, precise = (
            stack.enter_context(Engine(model, limits_of(model))) if model else None
            for model in (loaded, plain, exact)
        )
        for n in lengths:
            start = 7 * n
            prompt = tuple(text[(start + i) % len(text)] for i in range(n))
            ending = tuple(text[(start + 3 * i) % len(text)] for i in range(ENDING))
            first = Request(f"first {n}", (*prompt, ending[0]), 1, checkpoints=(n,))
            second = Request(f"second {n}", prompt + ending, 3, Sampling(logprobs=4))
            run(reusing, first)
            found, reused = run(reusing, second)
            expected, nothing = run(whole, second)
            assert (reused, nothing) == (n, 0)
            if n % SLICE == 0:
                assert found == expected, n
            else:
                assert_near(found, expected, near, n)
                if precise is not None:
                    truth, _ = run(precise, second)
                    for error, each in zip(errors, (found, expected), strict=True):
                        error.add(each, truth)
    if exact is not None:
        reused, computed = (error.root_mean_square for error in errors)
        assert reused <= 1.5 * computed, (reused, computed)


class Errors:
    """The differences of log-probabilities from those of a precise model, up to the first token
    that differs."""

    def __init__(self):
        self.squares = []

    def add(self, found, truth):
        for one, other in zip(found, truth, strict=True):
            if one.token != other.token:
                return
            self.squares.append((one.logprob - other.logprob) ** 2)

    @property
    def root_mean_square(self):
        return (sum(self.squares) / len(self.squares)) ** 0.5


def limits_of(loaded):
    return SchedulerLimits(
        slots=1,
        context=loaded.limits.context,
        step_tokens=2 * SLICE,
        slice=SLICE,
        vocabulary=loaded.info.vocabulary,
    )


def run(engine, request):
    """The log-probabilities of the emitted tokens, and the number of reused tokens."""
    *events, end = engine.submit(request)
    assert end.error is None
    emitted = [each for event in events if isinstance(event, Emitted) for each in event.logprobs]
    return emitted, end.usage.reused


def assert_near(found, expected, near, where):
    for one, other in zip(found, expected, strict=True):
        best, following = (logprob for _, logprob in other.top[:2])
        if one.token != other.token:
            assert best - following <= 2 * near, where
            return  # what follows another token is no longer the same text
        gap = abs(one.logprob - other.logprob)
        assert gap <= near, (where, gap)
