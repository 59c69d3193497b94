"""First tokens with a slow host are compared with those of the host as it is, in turn."""

from __future__ import annotations

import pytest

from kinfolk.cli.bench_runs import Run
from kinfolk.sched.scheduler import Scheduler


@pytest.fixture
def script(repo, monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    import slow_first_tokens

    return slow_first_tokens


def test_only_every_second_block_has_a_slow_host(script, monkeypatch):
    plain, slow = Scheduler.plan, []

    def measure(runtime, work, seed):
        slow.append(Scheduler.plan is not plain)
        return Run(0.0, 0.0, 1, (0.0021 if slow[-1] else 0.002,))

    monkeypatch.setattr(script, "measure", measure)
    found = script.compared(None, 16, 2, 0.0)
    assert found == {"plain": 2.0, "slow": 2.1, "ratio": 1.05}
    block = script.BLOCK
    blocks = [False] * block + [True] * block
    assert slow == [False] * script.WARM_UP + blocks + blocks
    assert Scheduler.plan is plain


def test_no_prompt_is_a_repetition(script, monkeypatch):
    seeds = []

    def measure(runtime, work, seed):
        seeds.append(seed)
        return Run(0.0, 0.0, 1, (0.001,))

    monkeypatch.setattr(script, "measure", measure)
    for tokens in (16, 128, 512):
        script.compared(None, tokens, 3, 0.0)
    assert len(set(seeds)) == len(seeds)
