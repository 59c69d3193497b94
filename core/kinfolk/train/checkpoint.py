"""What an interrupted run leaves beside its output, to go on from: one file, replaced at once."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from kinfolk.errors import OutputError, RequestError
from kinfolk.gguf.output import PARTIAL
from kinfolk.train.texts import Text

_SUFFIX: Final = ".training"
_FORMAT: Final = 1


def checkpoint_path(out: Path) -> Path:
    """The checkpoint of the run that writes ``out``."""
    return out.with_name(out.name + _SUFFIX)


@dataclass(slots=True)
class TrainingCheckpoint:
    """The state of a run.

    ``identity`` has all that decides its result, by the name of the option. ``texts`` are the
    continuations so far by the number of their prompt. ``training`` is what the loop keeps, empty
    before its first step.
    """

    identity: Mapping[str, Any]
    texts: dict[int, Text] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write to ``path``; it keeps the old content until the new one is complete. Raises
        :class:`OutputError`."""
        content = {
            "format": _FORMAT,
            "identity": dict(self.identity),
            "texts": {n: [text.first, *text.tokens] for n, text in self.texts.items()},
            "training": self.training,
        }
        partial = path.with_name(path.name + PARTIAL)
        try:
            # Into memory first: torch reports a full disk as an error without a number.
            buffer = io.BytesIO()
            torch.save(content, buffer)
            partial.write_bytes(buffer.getbuffer())
            partial.replace(path)
        except OSError as error:
            if partial.is_file():
                partial.unlink()
            raise OutputError.of(path, error) from None

    @classmethod
    def load(cls, path: Path, identity: Mapping[str, Any]) -> TrainingCheckpoint:
        """The checkpoint in ``path``; one of a new run if there is no such file.

        Raises :class:`RequestError` for a file that is damaged, or of a run with other options.
        """
        if not path.exists():
            return cls(identity)
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            stated, texts = content["identity"], content["texts"]
            readable = content["format"] == _FORMAT
        except (OSError, RuntimeError, pickle.UnpicklingError, KeyError, TypeError, EOFError):
            readable, stated, texts = False, {}, {}
        if not readable:
            raise RequestError(
                f"{path}: this is no checkpoint of a training run, or it is damaged; begin anew "
                "with --restart"
            )
        changed = [name for name, value in identity.items() if stated.get(name) != value]
        if changed:
            differences = ", ".join(
                f"{name} {stated.get(name)!r} there and {identity[name]!r} here" for name in changed
            )
            raise RequestError(
                f"{path} is of a run with other options ({differences}); go on with the same "
                "ones, or begin anew with --restart"
            )
        found = {number: Text(tuple(row[1:]), row[0]) for number, row in texts.items()}
        return cls(identity, found, content["training"])
