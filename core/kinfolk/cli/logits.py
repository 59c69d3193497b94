"""``kinfolk logits``: writes the logits of every position, to compare implementations."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import click

from kinfolk.cli.console import ProgressBar, note
from kinfolk.cli.loading import Requirements, open_model, read_settings
from kinfolk.cli.options import LOADING, model_argument, settings_options
from kinfolk.errors import OutputError, RequestError
from kinfolk.gguf.output import PARTIAL, check_target, claim
from kinfolk.setting_values import home_expanded

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt
    import torch


@click.command(
    epilog="""\b
Examples:
  kinfolk logits model.gguf --tokens ids.npy --out logits.npy
  kinfolk logits model.gguf --tokens ids.npy --out logits.npy --dtype f32 --chunk 64"""
)
@model_argument
@click.option("--tokens", required=True, metavar="FILE", help="Token ids [n], a .npy file.")
@click.option("--out", required=True, metavar="FILE", help="Output: .npy, float32 [n, vocab].")
@click.option("--chunk", type=click.IntRange(min=1), help="Most tokens in a step.")
@settings_options(*LOADING, "context", "kv_codec", "v_codec")
@click.pass_context
def logits(
    ctx: click.Context,
    /,
    model: str | None,
    tokens: str,
    out: str,
    chunk: int | None,
    **rest: Any,
) -> None:
    """Write the logits of the model in FILE for the tokens in a file: float32 [n, vocab].

    Row i predicts token i + 1 from tokens 0 to i. Without FILE: the bundled model. The output gets
    its name when it is complete.
    """
    ids = read_tokens(Path(tokens))
    settings = read_settings(ctx, slots=1, checkpoints=0, context=len(ids))
    target = Path(out)
    read = [Path(tokens), *([] if model is None else [home_expanded(Path(model))])]
    check_target(target, overwrite=True, inputs=read)
    need = Requirements(positions=len(ids), what=f"{tokens} with its {len(ids)} tokens")
    with open_model(settings, model, need) as loaded:
        vocabulary = loaded.info.vocabulary
        if ids.min() < 0 or ids.max() >= vocabulary:
            raise RequestError(
                f"{tokens}: ids must be between 0 and {vocabulary - 1}, but are "
                f"{ids.min()} to {ids.max()}"
            )
        from kinfolk.engine.score import logits as score

        with ProgressBar("scoring") as progress:
            parts = score(loaded, ids.tolist(), chunk=chunk, progress=progress)
            write_rows(target, parts, (len(ids), vocabulary))
    note(f"{target}: float32 [{len(ids)}, {vocabulary}]")


def read_tokens(path: Path) -> npt.NDArray[np.int64]:
    """Token ids int64 [n], n > 0. Raises :class:`RequestError` if the file has no such array."""
    import numpy as np

    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise RequestError(f"{path}: cannot be read as a .npy file: {error}") from None
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
        actual = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, np.ndarray) else "an archive"
        raise RequestError(f"{path}: expected integers [n], got {actual}")
    if ids.size == 0:
        raise RequestError(f"{path}: holds no tokens")
    return ids.astype(np.int64)


def write_rows(path: Path, parts: Iterable[torch.Tensor], shape: tuple[int, int]) -> None:
    """Write float32 ``shape`` as .npy, from ``parts`` [rows, columns] as they arrive. The file gets
    its name at the end. Raises :class:`OutputError`."""
    from numpy.lib import format as npy

    file, partial = claim(path), path.with_name(path.name + PARTIAL)
    head = {"descr": "<f4", "fortran_order": False, "shape": shape}
    with open(file, "wb") as target:
        try:
            npy.write_array_header_1_0(target, head)
            for part in parts:
                target.write(part.float().cpu().numpy().astype("<f4").data)
            target.flush()
            partial.replace(path)
        except BaseException as error:
            with suppress(OSError):
                partial.unlink()
            if isinstance(error, OSError):
                raise OutputError.of(path, error) from None
            raise
