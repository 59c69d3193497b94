"""Reduced heads: the tokens of the target that their rows stand for. Torch-free."""

from __future__ import annotations

import numpy as np

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.gguf.ranges import MAX_INT32


def head_tokens(inventory: Inventory, info: TensorInfo, vocabulary: int | None) -> tuple[int, ...]:
    """The tokens that the integer tensor ``info`` lists, one for each row of a reduced head.

    Raises :class:`ModelFormatError` for a tensor of another type, and for tokens that are listed
    twice or are none of ``vocabulary`` (``None`` = unknown).
    """
    if info.type_name not in ("I32", "I64"):
        raise _misshapen(info, f"is of type {info.type_name}, expected I64 or I32")
    kind = np.int64 if info.type_name == "I64" else np.int32
    tokens = inventory.bytes(info.name).reshape(-1).view(kind)
    most = MAX_INT32 if vocabulary is None else vocabulary
    if len(set(tokens.tolist())) < len(tokens) or tokens.min() < 0 or tokens.max() >= most:
        raise _misshapen(
            info,
            f"lists {len(tokens)} tokens from {tokens.min()} to {tokens.max()}, expected "
            f"different ones below {most}",
        )
    return tuple(tokens.tolist())


def _misshapen(info: TensorInfo, message: str) -> ModelFormatError:
    return ModelFormatError(f"tensor {info.name!r} {message}", path=info.path, key=info.name)
