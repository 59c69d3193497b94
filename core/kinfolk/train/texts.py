"""Training texts: documents from files, cut into pieces of tokens. Torch-free."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kinfolk.errors import RequestError

JSON_LINES: Final = ".jsonl"
_TEXT: Final = "text"
_HELD_OUT: Final = 20
"""One of so many texts is held out, at least one,"""
_MOST_HELD_OUT: Final = 64
"""and at most as many as are measured in a few seconds."""


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens of one sequence; those from position ``first`` on are to be predicted.

    The tokens before ``first`` are a prompt: a drafter reads them and learns nothing of them.
    """

    tokens: tuple[int, ...]
    first: int = 1

    def holds_block(self, block: int) -> bool:
        """Whether a block of so many rows fits behind the first token."""
        return len(self.tokens) > block and len(self.tokens) - self.first >= 2


def read_documents(paths: Sequence[Path]) -> list[str]:
    """The documents in files and folders, in order of names.

    A file is one document; of a ``.jsonl`` file every line is one, an object with the key ``text``.
    Of a folder all files count that are UTF-8 and not hidden, whatever is below it. Raises
    :class:`RequestError` with the file, and the line, for what cannot be read.
    """
    documents: list[str] = []
    for path in paths:
        if path.is_dir():
            found = [text for file in _files(path) for text in _read(file, may_skip=True)]
            if not found:
                raise RequestError(f"{path}: the folder holds no text in UTF-8")
            documents += found
        else:
            documents += _read(path, may_skip=False)
    return documents


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path


def _read(path: Path, *, may_skip: bool) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        if may_skip:
            return []
        raise RequestError(
            f"{path}: byte {error.start} is not UTF-8; name files of text to learn from"
        ) from None
    if path.suffix == JSON_LINES:
        return [_of_line(path, number, line) for number, line in _lines(text)]
    return [text] if text.strip() else []


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _of_line(path: Path, number: int, line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get(_TEXT), str):
        raise RequestError(
            f"{path}: line {number} is no JSON object with a string under {_TEXT!r}; "
            f'write lines such as {{"{_TEXT}": "..."}}'
        )
    text: str = entry[_TEXT]
    return text


def fingerprint(documents: Iterable[str]) -> str:
    """Tells whether two runs read the same documents."""
    digest = hashlib.sha256()
    for document in documents:
        encoded = document.encode()
        digest.update(f"{len(encoded)}:".encode())
        digest.update(encoded)
    return digest.hexdigest()[:16]


def pieces(documents: Iterable[Sequence[int]], length: int, least: int) -> list[list[Text]]:
    """The pieces of every document, at most ``length`` tokens each and at least ``least``."""
    found = []
    for tokens in documents:
        cut = [tokens[start : start + length] for start in range(0, len(tokens), length)]
        found.append([Text(tuple(piece)) for piece in cut if len(piece) >= least])
    return [texts for texts in found if texts]


def divide(
    documents: Sequence[Sequence[Text]], most: int | None, seed: int
) -> tuple[list[Text], list[Text]]:
    """(texts to learn from, texts that are held out), in an order that ``seed`` decides.

    Whole documents are held out where some are short enough; for what is missing then, the end of
    the longest one, which is learned up to there; and pieces of the only one. ``most`` limits the
    texts. Raises :class:`RequestError` for a single text.
    """
    shuffled = list(documents) if len(documents) > 1 else [[text] for text in documents[0]]
    random.Random(seed).shuffle(shuffled)
    shuffled = _first_of(shuffled, most)
    total = sum(map(len, shuffled))
    if total < 2:
        raise RequestError(
            "the data holds a single text; at least two are needed, one to learn from and one to "
            "measure with: add data, or choose a smaller --length"
        )
    count = min(_MOST_HELD_OUT, max(1, total // _HELD_OUT))
    learned, held_out = list[Sequence[Text]](), list[Text]()
    for document in shuffled:
        if len(document) <= count - len(held_out):
            held_out.extend(document)
        else:
            learned.append(document)
    if missing := count - len(held_out):
        longest = max(range(len(learned)), key=lambda index: len(learned[index]))
        held_out += learned[longest][-missing:]
        learned[longest] = learned[longest][:-missing]
    return [text for document in learned for text in document], held_out


def _first_of(documents: Sequence[Sequence[Text]], most: int | None) -> list[Sequence[Text]]:
    """Documents of ``most`` texts together; the last one may be cut."""
    found, left = [], sum(map(len, documents)) if most is None else most
    for document in documents:
        if left > 0:
            found.append(document[:left])
            left -= len(document)
    return found
