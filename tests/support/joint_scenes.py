"""The joint law of three sampled tokens of the bundled model behind drafts, on any device."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from chances import chance_of, distribution
from drafter_scenes import LONGEST, Guided, answers

from kinfolk.engine import score
from kinfolk.engine.text import open_text
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings

log = logging.getLogger(__name__)

TEXT = "x ="
TEMPERATURE = 0.5
"""At which some seventy outcomes have four fifths of the mass."""

LIKELY = 5
"""Tokens of a place whose outcomes are told apart, and that are drafted: all others are one."""

SLOTS = 32
"""With more of them, only one token is drafted for each."""

EXACT = {"activations": "f16"}
"""Otherwise a GPU rounds rows to int8 in steps of up to 16 rows, and to float16 in larger ones: the
law is computed from texts of a few rows, and the draws are steps of many."""


class Likely(Guided):
    """A drafter whose candidates are ``futures`` int64 [LONGEST, n], the same for every lane."""

    def draft(self, block, view):
        found = self.drafter.draft(block, view)
        depth = torch.arange(1, found.tokens.shape[1] + 1, device=found.tokens.device)
        place = (block.positions[:, None] + depth).clamp_max(len(self.futures) - 1)
        count = self.futures.shape[1]
        found.tokens[:, :, :count] = self.futures[place]
        found.scores[:] = -torch.inf
        found.scores[:, :, :count] = -torch.arange(count, device=depth.device).float()
        return found


class JointLaw:
    """The likely outcomes of three tokens behind the prompt, and what the model says of each."""

    def __init__(self, models):
        loaded = models.open("pocket", **EXACT)
        settings = load_settings(device=models.device)
        tokenizer = open_text(models.target("pocket"), settings, models.registry)[0]
        self.prompt = tuple(tokenizer.encode(TEXT))
        self.logits = {}
        self._enter(loaded, ())
        self.outcomes = self.chances(TEMPERATURE)

    def _enter(self, loaded, tokens):
        known = [*self.prompt, *tokens]
        row = torch.cat(list(score.logits(loaded, known)))[-1].double().cpu().numpy()
        self.logits[tokens] = row
        if len(tokens) < 2:
            for token in self._likely(tokens, TEMPERATURE):
                self._enter(loaded, (*tokens, token))

    def _likely(self, tokens, temperature):
        """The best tokens behind ``tokens``, the same at every temperature, and their chances."""
        everything = distribution(self.logits[tokens], Sampling(temperature=temperature))
        return dict(itertools.islice(everything.items(), LIKELY))

    def chances(self, temperature):
        """The chance of each likely outcome."""
        chances = {(): 1.0}
        for _ in range(3):
            chances = {
                (*tokens, token): before * chance
                for tokens, before in chances.items()
                for token, chance in self._likely(tokens, temperature).items()
            }
        return chances

    def candidates(self):
        """The likely tokens of each position, int64 [LONGEST, LIKELY]."""
        rows = torch.zeros(LONGEST, LIKELY, dtype=torch.int64)
        for place in range(3):
            mass = Counter()
            for outcome, chance in self.outcomes.items():
                mass[outcome[place]] += chance
            best = [token for token, _ in mass.most_common(LIKELY)]
            rows[len(self.prompt) + place] = torch.tensor(best)
        return rows

    def chance_of(self, found, chances):
        """The chance that answers of these chances are as far from them as those found."""
        places = {outcome: place for place, outcome in enumerate(chances)}
        seen = [places.get(tuple(answer[:3]), len(places)) for answer in found]
        counts = np.bincount(seen, minlength=len(places) + 1)
        likely = np.array(list(chances.values()))
        return chance_of(counts, np.append(likely, 1 - likely.sum()))


def drafted_answers(models, law, mode, draws):
    """Answers of four tokens with other seeds, and their usages. The last token is there so that
    two are drafted: a step emits one more than it accepts."""
    loaded = models.drafted("pocket", mode, slots=SLOTS, **EXACT)
    drafter = Likely(
        loaded.drafter.drafter, law.candidates().to(loaded.device), loaded.info.vocabulary
    )
    loaded = replace(loaded, drafter=replace(loaded.drafter, drafter=drafter))
    sampling = Sampling(temperature=TEMPERATURE)
    requests = [
        Request(str(seed), law.prompt, 4, replace(sampling, seed=seed)) for seed in range(draws)
    ]
    found, usages, stats = answers(loaded, requests, SLOTS)
    assert stats["draft_failures"] == 0
    return found, usages


def three_tokens_have_the_joint_law(models, law, mode, draws, wrong):
    """And not that of the temperature ``wrong``, so that the draws are enough to tell."""
    found, usages = drafted_answers(models, law, mode, draws)
    accepted = sum(usage.accepted for usage in usages)
    assert draws / 2 < accepted < sum(usage.drafted for usage in usages)
    right = law.chance_of(found, law.outcomes)
    other = law.chance_of(found, law.chances(wrong))
    log.info("%s: %d of %d draws accepted, chance %.3g, of %g %.3g",
             mode, accepted, draws, right, wrong, other)  # fmt: skip
    assert right > 1e-3 > other
