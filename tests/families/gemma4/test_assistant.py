"""The assistant against that of transformers: the same target, tokens and hidden states."""

from __future__ import annotations

import pytest
import torch

from kinfolk.testing.draft_driver import DraftDriver
from kinfolk_gemma4.tiny import SHAPE as TARGET

BOUND = 1e-4
PASSES = 4
TOLD_APART = 100
"""A mistake changes the logits by at least so many times the bound."""
LENGTHS = (1, 5, TARGET.window, TARGET.window + 1, 140)
TOKEN = 17


class TrueFeatures(DraftDriver):
    """Gives the drafter the features of the model instead of made-up ones."""

    def _features(self, items, rows):
        return self.forward.features


class Side:
    """Our assistant behind texts; ``logits`` and ``listed`` are those of the last draft."""

    def __init__(self, loaded):
        self.drive = TrueFeatures(loaded)
        self.logits, self.listed = [], []
        head = self.drive.drafter.head

        def record(rows):
            logits, listed = head(rows)
            self.logits.append(logits[0])
            self.listed.append(None if listed is None else listed[0])
            return logits, listed

        self.drive.drafter.head = record

    def draft(self, tokens):
        """Propose behind these tokens; returns the proposals and the hidden state behind them."""
        lease = self.drive.open()
        self.drive.feed({lease: tokens})
        self.logits.clear()
        self.listed.clear()
        proposals = self.drive.propose({lease: TOKEN})
        return proposals, self.drive.drafter.hidden.rows(self.drive.state)[lease.slot].clone()


@pytest.fixture(scope="module")
def tokens():
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, TARGET.vocabulary, (max(LENGTHS),), generator=generator)


@pytest.fixture
def side(pair):
    return Side(pair.loaded())


class Theirs:
    """The assistant of transformers, and what it may be told wrong.

    A row of a windowed layer at position p sees those from p - window + 1 on, in the target and
    here. Their mask shows two more, so they get only these.
    """

    def __init__(self, pair, *, late=0, dropped=0, window=TARGET.window, advance=False):
        self.pair, self.late, self.dropped, self.window = pair, late, dropped, window
        self.advance = advance

    @torch.inference_mode()
    def draft(self, tokens, hidden):
        """Logits [passes, vocabulary] behind tokens [n] and the hidden state [width]."""
        n, shared = len(tokens), self.shared(tokens)
        table, token, hidden = self.pair.target.get_input_embeddings(), TOKEN, hidden[None, None]
        found = []
        for number in range(PASSES):
            position = n + self.late + (number if self.advance else 0)
            both = torch.cat([table(torch.tensor([[token]])), hidden], -1)
            out = self.pair.assistant(
                inputs_embeds=both,
                position_ids=torch.tensor([[position]]),
                shared_kv_states=shared,
            )
            found.append(out.logits[0, 0])
            hidden, token = out.last_hidden_state, int(found[-1].argmax())
        return torch.stack(found)

    def shared(self, tokens):
        """The keys and values of committed rows, by the kind of layer."""
        known = self.pair.target.model(
            tokens[None], use_cache=False, return_shared_kv_states=True
        ).shared_kv_states
        last = len(tokens) - self.dropped
        first = {"full_attention": 0, "sliding_attention": max(0, len(tokens) - self.window + 1)}
        return {
            kind: tuple(part[:, :, start:last] for part in known[kind])
            for kind, start in first.items()
        }


def error(side, expected):
    """The largest difference of a logit of a draft, relative to the largest of its pass."""
    worst = 0.0
    for logits, listed, row in zip(side.logits, side.listed, expected, strict=True):
        right = row if listed is None else row[listed]
        worst = max(worst, float((logits - right).abs().max() / right.abs().max()))
    return worst


@pytest.mark.parametrize("length", LENGTHS)
def test_every_pass_computes_what_transformers_does(pair, side, tokens, length):
    text = tokens[:length]
    proposals, hidden = side.draft(text.tolist())
    expected = Theirs(pair).draft(text, hidden)
    assert error(side, expected) <= BOUND
    assert torch.equal(proposals.tokens[0, :, 0], expected.argmax(-1))
    assert proposals.tokens.shape == (1, PASSES, 8)
    assert torch.equal(proposals.tokens[0], expected.topk(8, -1).indices)


def test_the_hidden_state_is_the_normed_one_of_the_last_committed_row(pair, side, tokens):
    _, hidden = side.draft(tokens.tolist())
    with torch.inference_mode():
        theirs = pair.target.model(tokens[None]).last_hidden_state[0, -1]
    # Features are rounded to bfloat16.
    assert float((hidden - theirs).abs().max() / theirs.abs().max()) < 2**-8 + 2 * BOUND


def test_scores_are_log_probabilities_of_the_tokens_that_are_compared(pair, side, tokens):
    proposals, _ = side.draft(tokens[:30].tolist())
    for depth, logits in enumerate(side.logits):
        right = logits.log_softmax(-1).topk(8).values
        torch.testing.assert_close(proposals.scores[0, depth], right, rtol=0, atol=BOUND)


@pytest.mark.parametrize(
    "mistake",
    [
        {"late": -1},
        {"late": 1},
        {"dropped": 1},
        {"window": TARGET.window - 1},
        {"window": TARGET.window + 1},
        {"advance": True},
    ],
    ids=str,
)
def test_other_positions_and_rows_are_seen(pair, side, tokens, mistake):
    _, hidden = side.draft(tokens.tolist())
    expected = Theirs(pair, **mistake).draft(tokens, hidden)
    assert error(side, expected) >= TOLD_APART * BOUND
