"""The text of hooks.md, read from `kinfolk.hookspecs` at run time; `generate.py` writes it.

Signatures and texts are those of the specifications. Types in signatures are resolved and
described, and so are the types that these name in turn. Callers of model hooks are looked up in the
code.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Protocol, get_args, get_origin

from kinfolk import hookspecs

CORE = Path(inspect.getfile(hookspecs)).parent

HEAD = """# Hooks

Generated from `kinfolk/hookspecs.py` for version {major}.{minor} of the plugin API.
[plugins.md](plugins.md) is the guide, with an example of each discovery hook.

| hook | answers that count | called |
|---|---|---|
"""

UNCALLED = "nothing calls it yet"


# -- hooks ----------------------------------------------------------------------------------------


def specifications(holder: type) -> Mapping[str, Callable[..., Any]]:
    """The hooks of a class of specifications, in their order."""
    marker = f"{hookspecs.PROJECT}_spec"
    return {name: hook for name, hook in vars(holder).items() if hasattr(hook, marker)}


def callers(hook: str, core: Path = CORE) -> list[str]:
    """Modules of the core that call a model hook, as `….hook(…)`; not those of the conformance
    kit."""
    return [
        path.relative_to(core).as_posix()
        for path in sorted(core.rglob("*.py"))
        if path.relative_to(core).parts[0] != "testing" and hook in methods_called(path.read_text())
    ]


@cache
def methods_called(source: str) -> frozenset[str]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return frozenset(call.func.attr for call in calls if isinstance(call.func, ast.Attribute))


def summary(core: Path = CORE) -> list[str]:
    """The lines of the first table."""
    rows = [
        f"| `{name}` | all | when a registry is built |"
        for name in specifications(hookspecs.DiscoveryHooks)
    ]
    for name in specifications(hookspecs.ModelHooks):
        modules = ", ".join(f"`{module}`" for module in callers(name, core))
        rows.append(f"| `{name}` | the first | {modules or UNCALLED} |")
    return rows


def section(name: str, hook: Callable[..., Any]) -> list[str]:
    """The section of one hook."""
    signature = inspect.signature(hook)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    title = f"{name}({', '.join(p.name for p in parameters)})"
    lines = [f"### `{title}`", "", markdown(hook.__doc__ or ""), ""]
    if parameters:
        lines += ["| argument | type |", "|---|---|"]
        lines += [f"| `{p.name}` | {cell(linked(str(p.annotation)))} |" for p in parameters]
        lines.append("")
    return [*lines, f"Returns {linked(str(signature.return_annotation))}.", ""]


# -- types ----------------------------------------------------------------------------------------


@cache
def types() -> Mapping[str, Any]:
    """The types that signatures of hooks name, and those that these name, by name."""
    holders = (hookspecs.DiscoveryHooks, hookspecs.ModelHooks)
    hooks = [hook for holder in holders for hook in specifications(holder).values()]
    waiting = [name for hook in hooks for name in named(hook)]
    known, found = imported(), dict[str, Any]()
    while waiting:
        name = waiting.pop()
        kind = known.get(name)
        if kind is None or name in found:
            continue
        found[name] = kind
        if inspect.isclass(kind):
            module = vars(import_module(kind.__module__))
            known = {name: value for name, value in module.items() if is_ours(value)} | known
            waiting += [word for _, text, _ in fields(kind) for word in words(text)]
            waiting += [word for method in methods(kind).values() for word in named(method)]
        else:
            waiting += words(alias(kind))
    return dict(sorted(found.items()))


def imported() -> dict[str, Any]:
    """What the specifications import for their annotations, by name."""
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(inspect.getsource(hookspecs))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kinfolk"):
            module = import_module(node.module or "")
            found |= {alias.name: getattr(module, alias.name) for alias in node.names}
    return found


def is_ours(value: object) -> bool:
    """A class of the project, a union of such, or a choice of words."""
    if isinstance(value, UnionType):
        return all(map(is_ours, get_args(value)))
    own = inspect.isclass(value) and value.__module__.startswith("kinfolk")
    return own or get_origin(value) is Literal


def named(function: Callable[..., Any]) -> list[str]:
    """Names in the annotations of a function."""
    return [word for text in function.__annotations__.values() for word in words(str(text))]


def words(annotation: str) -> list[str]:
    return re.findall(r"\w+", annotation)


def fields(kind: Any) -> list[tuple[str, str, str]]:
    """Name, type and default of what a record has, or a protocol asks for."""
    if is_protocol(kind):
        return [(name, str(text), "") for name, text in inspect.get_annotations(kind).items()]
    if not dataclasses.is_dataclass(kind):
        return []
    # What is not shown is set by the core.
    return [(f.name, str(f.type), default(f)) for f in dataclasses.fields(kind) if f.repr]


def default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()!r}`"
    if field.default is dataclasses.MISSING:
        return ""
    if callable(field.default):
        return "a function"
    if dataclasses.is_dataclass(field.default):
        return f"`{type(field.default).__name__}()`"
    return f"`{field.default!r}`"


def methods(kind: Any) -> dict[str, Callable[..., Any]]:
    """Public methods that a protocol asks for."""
    own = vars(kind).items() if is_protocol(kind) else ()
    return {name: f for name, f in own if name[0] != "_" and inspect.isfunction(f)}


def is_protocol(kind: Any) -> bool:
    return inspect.isclass(kind) and Protocol in kind.__bases__


def described(name: str, kind: Any) -> list[str]:
    """The section of one type."""
    lines = [f"### {name}", ""]
    if not inspect.isclass(kind):
        return [*lines, f"{linked(alias(kind))}", ""]
    text = kind.__doc__ or ""
    if text.startswith(f"{name}("):  # a record without a text gets its signature
        text = ""
    lines += [f"In `{kind.__module__}`. {markdown(text)}".rstrip(), ""]
    if fields(kind):
        lines += ["| field | type | default |", "|---|---|---|"]
        lines += [f"| `{n}` | {cell(linked(t))} | {cell(d)} |" for n, t, d in fields(kind)]
        lines.append("")
    if methods(kind):
        lines += ["| method | what it does |", "|---|---|"]
        for method, function in methods(kind).items():
            shown = cell(f"`{method}{signature_of(function)}`")
            lines.append(f"| {shown} | {cell(first(inspect.getdoc(function) or ''))} |")
        lines.append("")
    return lines


def alias(kind: Any) -> str:
    """An alias as it is written, without the modules of its names."""
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", str(kind))


def signature_of(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    arguments: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        arguments.append(f"{parameter.name}: {parameter.annotation}{default}")
    return f"({', '.join(arguments)}) -> {signature.return_annotation}"


# -- text -----------------------------------------------------------------------------------------


def markdown(text: str) -> str:
    """A docstring in Markdown; a paragraph in columns becomes a block."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", inspect.cleandoc(text))
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if re.search(r"^\S.*\S {2,}\S", paragraph, re.MULTILINE):
            paragraphs.append(f"```text\n{paragraph.replace('``', '')}\n```")
        else:
            paragraphs.append(paragraph.replace("``", "`"))
    return "\n\n".join(paragraphs)


def first(text: str) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join(markdown(text).split("\n\n")[0].split())


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|")


def linked(annotation: str) -> str:
    """An annotation, with links to the types of this page that it names."""
    names = [name for name in dict.fromkeys(words(annotation)) if name in types()]
    if names == [annotation]:
        return f"[`{annotation}`](#{annotation.lower()})"
    links = ", ".join(f"[{name}](#{name.lower()})" for name in names)
    return f"`{annotation}`" + (f" ({links})" if links else "")


def hooks() -> str:
    """All of hooks.md."""
    major, minor = hookspecs.API
    lines = [HEAD.format(major=major, minor=minor) + "\n".join(summary())]
    for title, holder in (
        ("Discovery hooks", hookspecs.DiscoveryHooks),
        ("Model hooks", hookspecs.ModelHooks),
    ):
        lines += ["", f"## {title}", "", markdown(holder.__doc__ or ""), ""]
        for name, hook in specifications(holder).items():
            lines += section(name, hook)
    lines += ["## Types", ""]
    for name, kind in types().items():
        lines += described(name, kind)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"
