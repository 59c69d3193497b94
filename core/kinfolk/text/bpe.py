"""Running the BPE of the library ``tokenizers``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kinfolk.errors import RequestError

if TYPE_CHECKING:
    import tokenizers

SHORT_TEXT: Final = 4096
"""Characters that take well under a millisecond."""


def encode_bpe(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Ids of a plain text. Other threads run meanwhile: ``encode`` of the library keeps the lock of
    the interpreter, for half a second for 128K tokens; the call for batches does not.

    Raises :class:`RequestError` for a text that the library gives up on.
    """
    if len(text) <= SHORT_TEXT:
        short: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return short
    with _panics_refused(len(text)):
        (found,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = found.ids
    return ids


@contextmanager
def _panics_refused(characters: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # No Exception, and of a class that no module exports.
        if type(error).__name__ != "PanicException":
            raise
        raise RequestError(
            f"a text of {characters} characters cannot be tokenised ({error}): it may have a run "
            "of millions of spaces"
        ) from error
