"""Running the BPE of the library ``tokenizers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import tokenizers

SHORT_TEXT: Final = 4096
"""Characters that take well under a millisecond."""


def encode_bpe(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Ids of a plain text. Other threads run meanwhile: ``encode`` of the library keeps the lock of
    the interpreter, for half a second for 128K tokens; the call for batches does not."""
    if len(text) <= SHORT_TEXT:
        short: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return short
    (found,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = found.ids
    return ids
