"""Sandbox with a budget, in which chat templates of model files run.

The sandbox, tags, filters and functions are those of ``transformers.utils.chat_template_utils``,
for which templates are written. A template is part of a downloaded file and must not stall the
process, so it has a budget: loop iterations, calls and characters of text are counted, and a
template that exceeds the budget fails. The count is independent of time.

A template cannot read files, import modules or change the caller's values. Not bounded: memory
inside a single operation, before its result is counted (the width of a format, the arguments of
filters such as ``center`` or ``replace``, printing a list that contains itself many times).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sized
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, cast

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS: Final = 10_000_000
MAX_CHARACTERS: Final = 1 << 27
MAX_BITS: Final = 4096
STEPS_OF_A_CALL: Final = 20
"""A call takes about as long as this many empty loop iterations."""

# Names with a space are unreachable from a template.
BUDGET: Final = "the budget"
_CHARGE_LOOP: Final = "charge loop"
_CHARGE_RESULT: Final = "charge result"


class Refusal(TemplateError):
    """The template rejected its input, by ``raise_exception``."""


class BudgetError(TemplateError):
    """The template exceeded its budget."""


class Budget:
    """Steps and characters left to one rendering. Methods raise :class:`BudgetError`."""

    def __init__(self, steps: int = MAX_STEPS, characters: int = MAX_CHARACTERS):
        self._steps = steps
        self._characters = characters

    def spend(self, steps: int, characters: int = 0) -> None:
        self._steps -= steps
        self._characters -= characters
        if self._steps < 0:
            raise BudgetError("the template runs too long; it loops or calls itself without end")
        if self._characters < 0:
            raise BudgetError("the template writes too much text; it grows without end")

    def charge_value(self, value: Any) -> None:
        """Charge for the size of an operation's result."""
        if isinstance(value, int):
            self.check_bits(value.bit_length())
        if isinstance(value, str | bytes | list | tuple):
            self.spend(0, len(value))

    @staticmethod
    def check_bits(bits: int) -> None:
        if bits > MAX_BITS:
            raise BudgetError("the template computes with numbers that are too large")


class _ChargedItems:
    """The items of a loop; each iteration is charged when it begins."""

    def __init__(self, items: Iterable[Any], budget: Budget, characters: int):
        self._items = items
        self._budget = budget
        self._characters = characters

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.spend(1, self._characters)
            yield item

    def __len__(self) -> int:
        # jinja2 counts the items itself if they have no length.
        if not isinstance(self._items, Sized):
            raise TypeError("the items have no length")
        return len(self._items)


class _ChargeInserter(NodeTransformer):
    """Inserts budget charges into a parsed template: around loops, filters and ``~``."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.iter = _filtered(cast(nodes.Expr, node.iter), _CHARGE_LOOP, nodes.Const(written))
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(node, _CHARGE_RESULT)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(node, _CHARGE_RESULT)


def _filtered(node: nodes.Expr, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """``{% generation %}`` marks the model's own text, for training; its body is rendered as is."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """``namespace()`` that refuses names with a leading underscore, such as ``__class__``."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # No named ``self``, as in jinja2: ``namespace(self=1)`` is valid.
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: names must not begin with '_'")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates that charge the :class:`Budget` in their variable ``BUDGET``."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
            # Constant folding would run operations at compile time, without a budget.
            optimized=False,
            finalize=_charge_output,
        )
        self.filters["tojson"] = _to_json
        self.filters[_CHARGE_LOOP] = _charge_loop
        self.filters[_CHARGE_RESULT] = _charge_result
        # A function instead of the type; no ``lipsum``, which writes text of any length.
        self.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
        self.globals["namespace"] = _Namespace
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _ChargeInserter().visit(tree)
        tree.set_environment(self)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(__context)
        budget.spend(STEPS_OF_A_CALL)
        result = super().call(__context, __obj, *args, **kwargs)
        budget.charge_value(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget(context)
        if operator == "*":
            budget.spend(0, _repeated_length(left, right) or _repeated_length(right, left))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            budget.check_bits(left.bit_length() * right)
        result = super().call_binop(context, operator, left, right)
        budget.charge_value(result)
        return result


@lru_cache(maxsize=64)
def compile_template(source: str) -> Template:
    """The compiled template. Raises :class:`jinja2.TemplateSyntaxError`."""
    return TemplateEnvironment().from_string(source)


@lru_cache(maxsize=1)
def global_names() -> frozenset[str]:
    """Names of the functions that every template can call."""
    return frozenset(TemplateEnvironment().globals)


def _repeated_length(value: Any, times: Any) -> int:
    """The length of ``value * times`` if ``value`` is a sequence, else 0."""
    repeats = isinstance(value, str | bytes | list | tuple) and isinstance(times, int)
    return len(value) * max(0, times) if repeats else 0


def _budget(context: Context) -> Budget:
    budget = context.resolve(BUDGET)
    assert isinstance(budget, Budget), "a template was rendered without a budget"
    return budget


@pass_context
def _charge_output(context: Context, value: Any) -> str:
    text = str(value)
    _budget(context).spend(0, len(text))
    return text


@pass_context
def _charge_loop(context: Context, items: Iterable[Any], characters: int) -> _ChargedItems:
    return _ChargedItems(items, _budget(context), characters)


@pass_context
def _charge_result(context: Context, value: Any) -> Any:
    _budget(context).charge_value(value)
    return value


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as in training data: no HTML escapes and, by default, no ASCII escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: Any) -> None:
    raise Refusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
