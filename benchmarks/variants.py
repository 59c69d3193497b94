"""Values of a constant of kinfolk or its kernels, in turn on one loaded model.

    python benchmarks/variants.py MODULE:NAME=VALUE[,VALUE]… [--shape NAME]… [--case NAME]…
                                  [--layers N] [--rounds N] [--repeats N] [--device NAME]

For example ``kinfolk_kernels.route.triton_backend:MAX_FEW_ROWS=16,64``. Runs cases of ``table.py``
with the constant's own value and with each of the others, an engine for each, and all of them
``--rounds`` times. MODULE is the one that reads the constant; a constant that kernels compile in
(``tl.constexpr``) cannot be changed. A first run is not counted: it differs from later ones by 1 to
5 %. Prints a JSON line for each run.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import triton.language as tl
from model_files import model_file, outline_of
from table import by_settings, cases_of, measured

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

SHOWN = ("step_milliseconds", "prompt_tokens_per_second", "first_token_milliseconds")


@dataclass(frozen=True)
class Constant:
    """A constant of a module, and the values to compare with its own."""

    module: Any
    name: str
    others: tuple[Any, ...]

    @classmethod
    def parsed(cls, text: str) -> Constant:
        """Of MODULE:NAME=VALUE[,VALUE]…; values are Python literals. Raises
        ``argparse.ArgumentTypeError`` that says what is wrong."""
        place, equals, values = text.partition("=")
        module, colon, name = place.partition(":")
        if not equals or not colon:
            raise argparse.ArgumentTypeError(f"{text!r} is not MODULE:NAME=VALUE[,VALUE]…")
        try:
            found = import_module(module)
        except ImportError as error:
            raise argparse.ArgumentTypeError(f"there is no module {module!r}: {error}") from None
        if not hasattr(found, name):
            raise argparse.ArgumentTypeError(f"{module} has no {name!r}")
        if isinstance(getattr(found, name), tl.constexpr):
            raise argparse.ArgumentTypeError(f"{name} is compiled into kernels")
        try:
            others = ast.literal_eval(f"({values},)")
        except (SyntaxError, ValueError):
            raise argparse.ArgumentTypeError(f"{values!r} are no Python literals") from None
        return cls(found, name, others)

    @property
    def values(self) -> tuple[Any, ...]:
        """All values to run with, its own first."""
        return (getattr(self.module, self.name), *self.others)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("constant", type=Constant.parsed, metavar="MODULE:NAME=VALUE[,VALUE]…")
    parser.add_argument("--shape", action="append", help="default: qwen3.5-35b-a3b")
    parser.add_argument("--case", action="append", help="default: decode, greedy; 16 sequences")
    parser.add_argument("--layers", type=int, default=20, help="fewer than released; 0 = all")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="of a case in a run")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for shape in options.shape or ["qwen3.5-35b-a3b"]:
        for row in rows_of(options.constant, shape, options):
            sys.stdout.write(json.dumps({"shape": shape, **row}, default=str) + "\n")
            sys.stdout.flush()


def rows_of(
    constant: Constant, shape: str, options: argparse.Namespace
) -> Iterator[dict[str, object]]:
    """A row for each case, round and value."""
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    cases = cases_of(shape, options.case or ("decode, greedy", "16 sequences"))
    with model_file(outline_of(shape, options.layers)) as path:
        for alike in by_settings(cases):
            settings = load_settings(
                device=options.device, checkpoints=0, draft="off", **alike[0].settings
            )
            with Runtime.open(path, settings, registry) as runtime:
                for case in alike:
                    figures = partial(measured, runtime, settings, case)
                    figures(1)
                    for row in in_turn(constant, options.rounds, options.repeats, figures):
                        yield {"case": case.name, **row}


def in_turn(
    constant: Constant, rounds: int, repeats: int, figures: Callable[[int], dict[str, Any]]
) -> Iterator[dict[str, object]]:
    """``figures(repeats)`` with each value, ``rounds`` times one after the other."""
    values = constant.values
    for _ in range(rounds):
        for value in values:
            with patch.object(constant.module, constant.name, value):
                found = figures(repeats)
            yield {constant.name: value, **{name: found[name] for name in SHOWN}}


if __name__ == "__main__":
    main()
