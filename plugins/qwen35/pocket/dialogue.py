"""Generates short dialogues from documented functions of the corpus.

The pocket model is not a chat model, but a chat client should get Python code from it in the chat
format of the family: reasoning, then an answer. The user's message is built from the first sentence
of a docstring, a name or a signature; the answer is the function itself.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
from dataclasses import dataclass

from pocket.corpus import Source, parse

MAX_CHARACTERS = 1500
REQUESTS = (
    "Write a Python function `{name}`. {summary}",
    "Write a function: {summary}",
    "{summary}",
    "I need Python code for this: {summary}",
    "Please complete this code:\n\n{signature}",
    "def {name}",
)
SYSTEM = "You write Python."
THOUGHTS = (
    "The function is called `{name}` and takes {arguments}.",
    "I write `{name}` with {arguments}.",
)


@dataclass(frozen=True, slots=True)
class Example:
    """A documented function: its source, and the parts that the user's message quotes."""

    name: str
    summary: str
    signature: str
    arguments: str
    code: str


def examples(source: Source) -> list[Example]:
    """The documented functions of a file, methods included."""
    tree = parse(source.text)
    lines = source.text.splitlines(keepends=True)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree else []
    found = [_example(node, lines) for node in nodes if not node.decorator_list]
    return [example for example in found if example is not None]


def _example(node: ast.FunctionDef, lines: list[str]) -> Example | None:
    summary = first_sentence(ast.get_docstring(node) or "")
    if summary is None or len(node.body) < 3 or node.name.startswith("__"):
        return None
    code = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno])).strip()
    if len(code) > MAX_CHARACTERS or not code.startswith("def ") or "<|" in code:
        return None
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    named = " and ".join(f"`{name}`" for name in names) or "no arguments"
    signature = "".join(lines[node.lineno - 1 : node.body[0].lineno - 1])
    return Example(node.name, summary, textwrap.dedent(signature).strip(), named, code)


def first_sentence(docstring: str) -> str | None:
    """The first sentence of a docstring, on one line; None unless it is plain English prose."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s", paragraph)[0]
    good = 20 <= len(sentence) <= 160 and sentence.isascii() and sentence[0].isupper()
    return sentence if good and sentence.endswith(".") and "<" not in sentence else None


def render(example: Example, choose: random.Random) -> str:
    """A dialogue in the family's chat format.

    Half of the dialogues have reasoning; a fifth have a system message.
    """
    fields = {
        "name": example.name,
        "summary": example.summary,
        "signature": example.signature,
        "arguments": example.arguments,
    }
    request = choose.choice(REQUESTS).format(**fields)
    thought = choose.choice(THOUGHTS).format(**fields) if choose.random() < 0.5 else ""
    system = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" if choose.random() < 0.2 else ""
    return (
        f"{system}<|im_start|>user\n{request}<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\n{thought}\n</think>\n\n"
        f"```python\n{example.code}\n```<|im_end|>\n"
    )
