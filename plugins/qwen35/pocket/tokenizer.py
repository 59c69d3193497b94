"""The pocket model's tokenizer: byte-level BPE behind the qwen35 pre-tokenizer.

Special tokens have the last ids. There is no normaliser and no BOS token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 8192
END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
CONTROLS = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
# Encoded as whole tokens; unlike special tokens, they appear in decoded text.
MARKS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def pre_tokenizer(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in patterns]
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, bytes_only])


def train(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Train a tokenizer without special tokens.

    Documents are encoded with it, so their text cannot become a special token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    # The pre-tokenizer keeps "):" and the line end in one piece, but no merge may join them: a
    # prompt that ends with a colon must end in the token that the colon has inside a text.
    tokenizer.pre_tokenizer = pre_tokenizer(PATTERN, r"[\r\n]+")
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(CONTROLS) - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=[],
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizer(PATTERN)
    return tokenizer


def with_specials(plain: Tokenizer) -> Tokenizer:
    """The same tokenizer with special tokens; their ids follow the ordinary ones."""
    tokenizer = Tokenizer.from_str(plain.to_str())
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROLS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKS])
    return tokenizer


def without_specials(file: Path) -> Tokenizer:
    """Read a tokenizer.json without special tokens: it encodes their texts as ordinary ones."""
    content = json.loads(file.read_text(encoding="utf-8"))
    content["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(content))


def end_of_text(tokenizer: Tokenizer) -> int:
    found = tokenizer.token_to_id(END_OF_TEXT)
    if found is None:
        raise ValueError(f"the tokenizer has no {END_OF_TEXT}")
    return int(found)
