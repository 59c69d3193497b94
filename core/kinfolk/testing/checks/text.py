"""Checks of text: encoding, decoding and chat templates."""

from __future__ import annotations

from typing import Final

import pytest

from kinfolk.testing.kit import Kit
from kinfolk.testing.marks import needs
from kinfolk.text.pretokenizers import split_steps

TEXTS: Final = {
    "empty": "",
    "words": "The quick brown fox doesn't care; I'LL see.",
    "digits": "12345 1,000.50 x2",
    "white space": "  two\n\n\n  three\t\ttabs \r\n trailing ",
    "scripts": "été naïve Ωμέγα Привет שלום 你好 日本語 ไทย",
    "combining": "e\u0301te\u0301 x\u0308",
    "emoji": "👩‍👩‍👧 🏳️‍🌈 👍🏽",
    "code": "def f(x):\n    return {'a': [x**2]}  # ok\n",
    "punctuation": "...!?--((»«))\u2026",
    "controls": "\x00\x01\x7f\u200b\ufeff",
    "not assigned": "\U000e0001\uffff",
}
"""Texts that are hard to tokenise, by name."""

CONVERSATION: Final = (
    {"role": "user", "content": "How many?"},
    {"role": "assistant", "content": "Three."},
    {"role": "user", "content": "Why? Ω\n"},
)


class TextChecks:
    """The tokenizer and chat template of the tiny model, with the family's chat format."""

    @needs("tiny")
    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    def test_texts_come_back(self, kinfolk_kit: Kit, text: str) -> None:
        """Decoding the tokens of a text gives the text, and its tokens are in the vocabulary."""
        tokenizer = kinfolk_kit.text[0]
        tokens = tokenizer.encode(text, add_bos=False)
        assert all(0 <= token < kinfolk_kit.config.vocabulary for token in tokens)
        assert tokenizer.decode(tokens) == text
        assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()

    @needs("tiny")
    def test_special_tokens_are_taken_whole(self, kinfolk_kit: Kit) -> None:
        """The text of every special token is encoded as that token, also inside other text."""
        tokenizer = kinfolk_kit.text[0]
        specials = [token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)]
        for token in specials:
            text = tokenizer.token_text(token)
            assert tokenizer.encode(f"a{text}b", add_bos=False).count(token) == 1, text
        assert tokenizer.eog, "no token ends a text: a generation would run until it is cut"

    @needs("tiny")
    def test_patterns_compile(self, kinfolk_kit: Kit) -> None:
        """The regular expressions of the family's pre-tokenizers are valid."""
        for pre in kinfolk_kit.family.pretokenizers():
            assert split_steps(pre) or not pre.patterns

    @needs("tiny")
    def test_markers_are_distinct(self, kinfolk_kit: Kit) -> None:
        """Markers differ from each other, and no marker or kept token is a stop token."""
        chat = kinfolk_kit.text[2]
        assert len(set(chat.markers)) == len(chat.markers)
        assert not set(chat.markers) & set(chat.stop_tokens)
        assert not set(chat.keep_tokens) & set(chat.stop_tokens)

    @needs("tiny", "chat template")
    def test_conversations_are_rendered(self, kinfolk_kit: Kit) -> None:
        """The template renders turns in order, and longer conversations extend shorter ones."""
        chat = kinfolk_kit.text[1]
        assert chat is not None
        prompt = chat.prompt(CONVERSATION)
        assert prompt.tokens
        assert all(0 <= token < kinfolk_kit.config.vocabulary for token in prompt.tokens)
        places = [prompt.text.find(str(turn["content"]).strip()) for turn in CONVERSATION]
        assert -1 not in places, f"a turn is missing from {prompt.text!r}"
        assert places == sorted(places)
        assert chat.render(CONVERSATION, add_generation_prompt=False) != prompt.text, (
            "the template does not open the answer when it is asked to"
        )
