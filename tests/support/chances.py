"""A chi-square test of counts, and the distribution of sampling computed by its definition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.sched.request import Sampling


def chance_of(counts: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """The chance that fair draws deviate at least as much, by a chi-square test.

    Rare outcomes are pooled until at least five are expected.
    """
    seen = np.asarray(counts, np.float64).ravel()
    expected = np.asarray(probabilities, np.float64).ravel() * seen.sum()
    assert not seen[expected == 0].any()
    order = np.argsort(-expected)
    seen, expected = seen[order], expected[order]
    usual = max(1, int((expected >= 5).sum()))
    seen = np.append(seen[:usual], seen[usual:].sum())
    expected = np.append(expected[:usual], expected[usual:].sum())
    real = expected > 0
    statistic = ((seen - expected)[real] ** 2 / expected[real]).sum()
    freedom = int(real.sum()) - 1
    if freedom == 0:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def distribution(
    logits: npt.ArrayLike,
    sampling: Sampling,
    prompt: frozenset[int] = frozenset(),
    output: Mapping[int, int] | None = None,
) -> dict[int, float]:
    """The probability of every token that may be drawn, in the order of candidates, computed token
    by token in float64."""
    score = {token: float(x) for token, x in enumerate(np.asarray(logits))}
    counts = dict(output or {})
    for token in score:
        _penalise(score, token, token in prompt, counts.get(token, 0), sampling)
    for token, bias in sampling.logit_bias:
        score[token] += bias
    order = sorted(score, key=lambda token: (-score[token], token))
    if sampling.temperature == 0:
        return {order[0]: 1.0}
    return _truncated(score, order, sampling)


def _penalise(
    score: dict[int, float], token: int, in_prompt: bool, count: int, sampling: Sampling
) -> None:
    if in_prompt or count:
        factor = sampling.repetition_penalty
        score[token] = score[token] / factor if score[token] > 0 else score[token] * factor
    score[token] -= sampling.frequency_penalty * count
    score[token] -= sampling.presence_penalty * bool(count)


def _truncated(score: dict[int, float], order: list[int], sampling: Sampling) -> dict[int, float]:
    """Probabilities after temperature, top-k, top-p and min-p, in this order; they sum to 1."""
    kept = order[: sampling.top_k] if sampling.top_k else order
    best = score[kept[0]]
    mass = {token: float(np.exp((score[token] - best) / sampling.temperature)) for token in kept}
    total = sum(mass.values())
    mass = {token: m / total for token, m in mass.items()}
    nucleus: dict[int, float] = {}
    before = 0.0
    for token, m in mass.items():
        if sampling.top_p == 1 or before < sampling.top_p or not nucleus:
            nucleus[token] = m
        before += m
    least = sampling.min_p * max(nucleus.values())
    final = {token: m for token, m in nucleus.items() if m >= least}
    total = sum(final.values())
    return {token: m / total for token, m in final.items()}
