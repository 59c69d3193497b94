"""Any order of opens, steps, forks, checkpoints, evictions, demotions and releases keeps the cache
correct, however late copies or steps are."""

from __future__ import annotations

from functools import partial

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from kv_cache_machine import KVCacheMachine


def test_books_and_bytes_agree_after_any_sequence_of_changes(state_toys):
    run_state_machine_as_test(
        partial(KVCacheMachine, state_toys.ToyCache),
        settings=settings(
            max_examples=2 * settings.default.max_examples, stateful_step_count=40, deadline=None
        ),
    )
