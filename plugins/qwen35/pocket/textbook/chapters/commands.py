"""Command lines and logging."""

import argparse
import logging
import sys


# == parse_args, parse_arguments
# parser: arguments
# - Parse the command line: a path, --count and --verbose.
# - Return the parsed arguments path, count and verbose.
# - Read the arguments of the program: path, --count (1) and --verbose.
# ? Parse arguments: a path, a --count that is 1 unless given, and --verbose.
def parse_args(argv=None):
    parser = argparse.ArgumentParser(description="Process a file.")
    parser.add_argument("path", help="file to read")
    parser.add_argument("--count", type=int, default=1, help="how often")
    parser.add_argument("--verbose", action="store_true", help="say more")
    return parser.parse_args(argv)


assert parse_args(["a.txt"]).count == 1
assert parse_args(["a.txt"]).path == "a.txt"
assert parse_args(["a.txt", "--count", "3", "--verbose"]).verbose


# == build_parser, make_parser, create_parser
# - Return the parser of the command line.
# - Build a parser with an input, an --output and --force.
# - Make an argument parser for input, --output (out.txt) and --force.
# ? Make a parser that knows input, --output (out.txt by default) and --force.
def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Convert a file.")
    parser.add_argument("input", help="file to read")
    parser.add_argument("-o", "--output", default="out.txt", help="file to write")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    return parser


assert build_parser().parse_args(["a.txt"]).output == "out.txt"
assert build_parser().parse_args(["a.txt", "--force"]).force


# == main
# - Count the lines of a file named on the command line.
# - Parse the command line, count the lines of the file, print the number.
# - Print how many lines the file given as argument has; return 0.
# ? Print the number of lines of the file that the arguments name, and return 0.
def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description="Count the lines of a file.")
    parser.add_argument("path", help="the file")
    args = parser.parse_args(argv)
    with open(args.path, encoding="utf-8") as file:
        count = sum(1 for _ in file)
    print(count)
    return 0


def main(argv=None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", help="file to read")
    parser.add_argument("--verbose", action="store_true", help="print the path too")
    args = parser.parse_args(argv)
    with open(args.path, encoding="utf-8") as file:
        lines = file.readlines()
    if args.verbose:
        print(args.path)
    print(len(lines))
    return 0


with open("a.txt", "w") as out:
    out.write("one\ntwo\n")
assert main(["a.txt"]) == 0


# == setup_logging, configure_logging
# verbose: debug, loud
# - Set up logging for a program.
# - Configure logging; with {verbose} messages for debugging are shown too.
# - Set the level of the root logger: DEBUG if {verbose}, else INFO.
# ? Make the root logger show DEBUG if {verbose}, and INFO otherwise.
def setup_logging(verbose: bool = False) -> None:
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(format="%(levelname)s: %(message)s")
    logging.getLogger().setLevel(level)


setup_logging(True)
assert logging.getLogger().level == logging.DEBUG
setup_logging(False)
assert logging.getLogger().level == logging.INFO


# == get_logger, make_logger
# name: title
# logger: log
# - Return a logger of the given name.
# - Make a logger called {name} that shows messages from INFO on.
# - Get the logger {name} and set its level to INFO.
# ? Give the logger with this {name}, at level INFO.
def get_logger(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    return logger


assert get_logger("x").name == "x"
assert get_logger("x").level == logging.INFO


# == print_error, fail
# message: text, reason
# - Print an error message to standard error and return 1.
# - Report {message} on stderr; return the exit code 1.
# - Write "error: " and {message} to standard error and return 1.
# ? Say {message} on standard error after "error: ", and give back 1.
def print_error(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


assert print_error("no such file") == 1


# == confirm, is_yes
# answer: text, reply
# - Tell whether an answer means yes.
# - Return True if {answer} is "y" or "yes" in any case, spaces ignored.
# - Check whether {answer} is a yes: y or yes, upper or lower case.
# ? Is {answer} a y or yes, however it is written?
def confirm(answer: str) -> bool:
    return answer.strip().lower() in ("y", "yes")


assert confirm("Yes ")
assert confirm("y")
assert not confirm("no")
assert not confirm("")


# == progress_bar, render_progress
# done: current, finished
# total: steps, whole
# width: length, size
# - Draw a progress bar as text.
# - Return a bar of {width} characters: # for what is done, - for the rest.
# - Render progress such as [##--] for half of {total}.
# ? Show {done} of {total} as a bar in brackets, {width} long, of # and -.
def progress_bar(done: int, total: int, width: int) -> str:
    filled = width * done // total
    return "[" + "#" * filled + "-" * (width - filled) + "]"


assert progress_bar(1, 2, 4) == "[##--]"
assert progress_bar(0, 5, 3) == "[---]"
assert progress_bar(5, 5, 3) == "[###]"


# == format_table, make_table
# rows: lines, records
# widths: sizes, columns
# - Format rows as a table of text with aligned columns.
# - Align the columns of {rows}; two spaces between them, lines not padded at the end.
# - Return {rows} as lines of text whose columns are left-aligned, two spaces apart.
# ? Lay {rows} out as text: left-aligned columns, two spaces apart, no spaces at line ends.
def format_table(rows: list) -> str:
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [str(cell).ljust(width) for cell, width in zip(row, widths)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


assert format_table([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc  d"
assert format_table([["x"]]) == "x"
