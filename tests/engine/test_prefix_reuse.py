"""A reused prefix gives what computing it gives, for every length of it."""

from __future__ import annotations

import prefix_scenes
import pytest

from kinfolk.engine.loading import load_model
from kinfolk.settings import load_settings

NEAR = 2e-3
"""Slices of other lengths round otherwise: 4e-4 of the largest logit, in log-probability."""

ON_GRID = range(prefix_scenes.SLICE, 301, prefix_scenes.SLICE)


# Slices and chunks end at multiples of these.
AROUND = {n + off for n in ON_GRID for off in (-2, -1, 0, 1, 2)}


def every_length(load, text, graphs, lengths):
    loaded = load(graphs=graphs, slots=1, checkpoints=2)
    plain = load(graphs=graphs, slots=1, checkpoints=0)
    prefix_scenes.prefixes(loaded, plain, text, sorted(lengths), NEAR)


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_a_prefix_that_ends_around_a_boundary(load, text, graphs):
    every_length(load, text, graphs, AROUND if graphs == "on" else {1, *ON_GRID})


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("graphs", ["on", "off"])
def test_a_prefix_of_every_length(load, text, graphs):
    every_length(load, text, graphs, range(1, 301))


@pytest.mark.parametrize("family", ["qwen35moe", "gemma4", "gemma4moe", "laguna"])
def test_a_prefix_in_every_family(registry, cases, text, family):
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 1, "graphs": "on"}
    loaded, plain = (
        load_model(
            cases / f"{family}.gguf", load_settings(checkpoints=checkpoints, **options), registry
        )
        for checkpoints in (2, 0)
    )
    known = [token % loaded.info.vocabulary for token in text]
    lengths = sorted({*range(1, 301, 50), *ON_GRID})
    prefix_scenes.prefixes(loaded, plain, known, lengths, NEAR)
