"""``kinfolk train-drafter``: trains a drafter for a model and writes its file."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from kinfolk.cli.console import ProgressBar, note, print_json, size
from kinfolk.cli.loading import check_model, discover, model_path, read_settings
from kinfolk.cli.main import EXIT_INTERRUPTED
from kinfolk.cli.options import (
    LOADING,
    SEED,
    FiniteRange,
    json_option,
    model_argument,
    settings_options,
)
from kinfolk.errors import OutputError
from kinfolk.gguf.output import check_target
from kinfolk.train.kinds import DRAFTER_KINDS

_POSITIVE: Final = click.IntRange(min=1)


@click.command(
    epilog="""\b
Examples:
  kinfolk train-drafter -m model.gguf --data ./texts -o model-draft.gguf --seconds 3600
  kinfolk train-drafter -m model.gguf --data prompts.jsonl --continue 256 -o model-draft.gguf
  kinfolk run -m model.gguf --draft-model model-draft.gguf "..."
  kinfolk train-drafter --kind mtp -m model.gguf --data ./texts -o model-mtp.gguf
  kinfolk run -m model-mtp.gguf --draft mtp "..."

\b
A drafter guesses what its model says, so let the model write what the drafter learns
from: --continue N takes the beginnings of your texts as prompts and continues each of
them by N tokens. Without it, the drafter learns the texts themselves, which serves only
if the model writes like them.

\b
--kind mtp trains a block for multi-token prediction instead, if the model's family has
one: one more layer, as large as one of the model's. OUT is the model's file with the
block behind its layers, everything else as it was. The block is applied --block - 1
times in a draft, each time to its own output. Its shape is that of the model's layers.

\b
While it runs, it prints the expected length: tokens of a step with the drafter, by the
drafts for texts that are held out. 1.0 is worth nothing, 3 is a good drafter; behind it
are the parts of first, second ... drafted tokens that are right if all before them are.

\b
Ctrl-C ends the run and leaves OUT.training; the same command goes on from there."""
)
@model_argument
@click.option(
    "--data",
    "paths",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help='A text file, a folder of them, or a .jsonl file of lines {"text": "..."}. May be '
    "repeated.",
)
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write: a drafter, which --draft-model loads, or the model with its block.",
)
@click.option(
    "--kind",
    type=click.Choice(list(DRAFTER_KINDS)),
    default="dflash",
    show_default=True,
    help="Kind of drafter: a file beside the model, or a block in the model's file.",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0, min_open=True),
    metavar="N",
    help="Train for about N seconds; loading and --continue come on top. Default: 600.",
)
@click.option("--steps", type=_POSITIVE, metavar="N", help="Train for N steps instead.")
@click.option(
    "--continue",
    "continue_",
    type=_POSITIVE,
    metavar="N",
    help="Let the model continue every text by N tokens, and learn these.",
)
@click.option(
    "--temperature",
    type=FiniteRange(min=0),
    default=0.0,
    show_default=True,
    help="Of continuations; 0 = greedy.",
)
@click.option(
    "--sequences",
    type=_POSITIVE,
    default=16,
    show_default=True,
    help="Texts that are continued at once.",
)
@click.option(
    "--length",
    type=click.IntRange(min=4),
    default=512,
    show_default=True,
    help="Most tokens of a text, continuation included; longer ones are cut.",
)
@click.option(
    "--texts",
    type=click.IntRange(min=2),
    metavar="N",
    help="Use N of the texts, chosen by --seed. Default: all.",
)
@click.option(
    "--block",
    type=click.IntRange(2, 64),
    help="Rows of a draft: the last token and the tokens that are guessed. Default: 16, of mtp 4.",
)
@click.option("--layers", type=_POSITIVE, help="Drafter's layers. Default: 5.")
@click.option(
    "--window", type=_POSITIVE, help="Positions that all layers but the last see. Default: all."
)
@click.option("--heads", type=_POSITIVE, help="Query heads. Default: by the model's width.")
@click.option("--kv-heads", type=_POSITIVE, help="Key heads. Default: a quarter of --heads.")
@click.option("--head-dim", type=_POSITIVE, help="Numbers of a head. Default: by the width.")
@click.option(
    "--feed-forward",
    type=_POSITIVE,
    help="Inner width of the feed-forward. Default: 3 times the model's width.",
)
@click.option(
    "--feature-layers",
    metavar="I,J,...",
    help="Layers of the model that the drafter reads, from 0. Default: 5, spread evenly.",
)
@click.option(
    "--mask-token",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Token of the rows to guess, one that texts do not have. Default: an unused "
    "one, else a control token.",
)
@click.option(
    "--anchors",
    type=_POSITIVE,
    default=64,
    show_default=True,
    help="Random places of a text that are drafted from in a step.",
)
@click.option("--batch", type=_POSITIVE, default=4, show_default=True, help="Texts in a step.")
@click.option(
    "--learning-rate",
    type=FiniteRange(min=0, min_open=True),
    default=6e-4,
    show_default=True,
    help="The highest; it warms up, then falls by a cosine.",
)
@click.option(
    "--weight-decay",
    type=FiniteRange(min=0),
    default=0.0,
    show_default=True,
    help="Of AdamW.",
)
@click.option(
    "--gamma",
    type=FiniteRange(min=0, min_open=True),
    help="Token k of a draft counts exp(-(k - 1) / GAMMA). Default: half of --block, at most 7.",
)
@click.option(
    "--ema",
    type=FiniteRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="Decay of averaged weights, such as 0.999; 0 = none.",
)
@click.option(
    "--feature-memory",
    type=FiniteRange(min=0),
    default=2.0,
    show_default=True,
    help="GiB of main memory for the model's features, which are computed again beyond.",
)
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Same seed and --steps, same drafter."
)
@click.option(
    "--outtype",
    default="q8_0",
    show_default=True,
    metavar="TYPE",
    help="Tensor type of OUT, as in 'kinfolk convert'.",
)
@click.option("--name", default="", help="Name in the file. Default: the model's, and 'drafter'.")
@click.option(
    "--alone",
    is_flag=True,
    help="Of mtp: write the block alone, for '--draft mtp --draft-model OUT'.",
)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--restart", is_flag=True, help="Begin anew if there is an interrupted run.")
@json_option
@settings_options(*LOADING)
@click.pass_context
def train_drafter(ctx: click.Context, /, **params: Any) -> None:
    """Train a drafter for the model in FILE, or for the bundled one, on the texts of --data.

    A drafter guesses the next tokens of its model, which checks them all in one step. The drafter
    reads outputs of some of the model's layers and shares its embedding and head, so it is small;
    it runs with any model whose family has features, as all of kinfolk's own do.
    """
    from kinfolk.train.options import TrainOptions, layer_numbers
    from kinfolk.train.prepared import prepare_run

    out: Path = params["out"]
    fields = {name: params[name] for name in TrainOptions.__dataclass_fields__}
    fields["feature_layers"] = layer_numbers(params["feature_layers"])
    options = TrainOptions(**fields)
    check_target(out, params["overwrite"], inputs=_files_of(params["paths"]))
    settings = read_settings(ctx)
    registry = discover(settings)
    target = model_path(params["model"], registry)
    if out.exists() and target.exists() and out.samefile(target):
        raise OutputError(f"-o {out} is the file of the model itself; choose another name")
    check_model(target, settings, registry)
    prepared = prepare_run(target, params["paths"], options, settings, registry)
    with ProgressBar("training", at_once=True) as bar, _stopping() as stop:
        from kinfolk.train.run import TrainingRun

        run = TrainingRun(prepared, options, settings, registry, out, _Report(bar), stop)
        trained = run.run(restart=params["restart"], overwrite=params["overwrite"])
    if trained is None:
        note(f"interrupted; the same command goes on from {run.checkpoint_path}")
        ctx.exit(EXIT_INTERRUPTED)
    if params["as_json"]:
        print_json(
            {
                "path": str(trained.path),
                "bytes": trained.nbytes,
                "steps": trained.steps,
                "seconds": trained.seconds,
                "length": trained.measured.length,
                "hits": list(trained.measured.hits),
            }
        )
        return
    note(
        f"{out}: {size(trained.nbytes)}, expected length {trained.measured.length:.2f}; use it "
        f"with {prepared.plan.usage(out)}"
    )


@dataclass(frozen=True, slots=True)
class _Report:
    """Notes above the progress bar."""

    bar: ProgressBar

    def note(self, message: str) -> None:
        note(message)

    def progress(self, done: int, total: int, what: str) -> None:
        self.bar(done, total, what)


def _files_of(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield from path.rglob("*") if path.is_dir() else (path,)


_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C, SIGTERM or SIGHUP came.

    A step that runs ends first, so that a checkpoint never has half of one; a second signal does
    not wait. The handler is silent, because it may run while another line is being printed.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING}
    if before[signal.SIGHUP] == signal.SIG_IGN:  # nohup
        del before[signal.SIGHUP]

    def handle(number: int, frame: object) -> None:
        came.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, handle)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
