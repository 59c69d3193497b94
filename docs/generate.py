"""Write the generated parts of the documentation; a test says when they are stale.

    python docs/generate.py

`modules.md` lists every module of the core with the first paragraph of its docstring,
`settings.md` every setting with its variable, flag, default and meaning, `checks.md` the checks of
the conformance kit, and `hooks.md` is the reference of hooks and their types.
"""

from __future__ import annotations

import ast
import inspect
import runpy
from pathlib import Path

import click

from kinfolk.cli.main import BUILT_IN, cli
from kinfolk.settings import ALIASES, Settings, flag, variable
from kinfolk.testing.conformance import DrafterConformance, FamilyConformance, PolicyConformance
from kinfolk.testing.run import title_of

DOCS = Path(__file__).resolve().parent
CORE = DOCS.parent / "core" / "kinfolk"

SETTINGS_HEAD = """# Settings

Every setting is an environment variable that all commands read; where a command has a flag for it,
the flag wins. A value that cannot work is an error that names where it came from. Lists are
separated by commas. Where two variables are named, the second is read if the first is not set. It
belongs to another program, in whose place kinfolk can be started.

Some commands have defaults of their own: `run`, `chat`, `daemon`, `logits` and `perplexity` have
one slot, `bench` as many as sequences or streams, `daemon` no queue, and `bench`, `logits`,
`perplexity` and, without `--cache-disk`, `run` no checkpoints; `bench`, `logits` and `perplexity`
take the context that they need, and `bench` drafts only if told to.

| variable | flag | commands with the flag | default | meaning |
|---|---|---|---|---|
"""


MODULES_HEAD = """# Modules of the core

Every module under `core/kinfolk` with the first paragraph of its docstring.
[architecture.md](architecture.md) says how they work together.

"""


CHECKS_HEAD = """# Checks of the conformance kit

What `kinfolk check NAME` checks of an installed family, drafter or policy.
[plugins.md](plugins.md) says how plugins are tested with them; a check that has no meaning for a
plugin is listed with the reason.
"""

CHECKS_TABLE = """
## {title}

| check | what holds |
|---|---|
"""


def modules() -> str:
    """All of modules.md: the path of each module, and what the module says it is."""
    lines = ["| module | what it is |", "|---|---|"]
    for path in sorted(CORE.rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text()))
        name = path.relative_to(CORE).as_posix()
        if text:
            lines.append(f"| `{name}` | {first_paragraph(text)} |")
        elif path.name != "__init__.py":
            raise SystemExit(f"{path} has no docstring")
    return MODULES_HEAD + "\n".join(lines) + "\n"


def first_paragraph(text: str) -> str:
    return (
        " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
        .replace("|", "\\|")
        .replace("``", "`")
    )


def commands_with(option: str) -> str:
    """The commands that have an option, in the order of help."""
    if any(option in parameter.opts for parameter in cli.params):
        return "all"
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in BUILT_IN}
    return ", ".join(
        f"`{name}`"
        for name, command in commands.items()
        if command is not None and any(option in one.opts for one in parameters(command))
    )


def parameters(command: click.Command) -> list[click.Parameter]:
    """The parameters of a command and of its subcommands."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return command.params + [one for each in below for one in parameters(each)]


def settings() -> str:
    """All of settings.md."""
    rows = []
    for name, field in Settings.model_fields.items():
        if name == "cache_dir":  # depends on the user's home
            default = "`kinfolk` in the user's cache folder"
        elif field.default_factory is not None or field.default in (None, ()):
            default = "unset"
        else:
            default = f"`{str(field.default).lower()}`"
        meaning = (field.description or "").replace("|", "\\|")
        commands = commands_with(flag(name))
        option = f"`{flag(name)}`" if commands else ""
        variables = [variable(name), *(other for other, field in ALIASES.items() if field == name)]
        names = ", ".join(f"`{each}`" for each in variables)
        rows.append(f"| {names} | {option} | {commands} | {default} | {meaning} |")
    return SETTINGS_HEAD + "\n".join(rows) + "\n"


def checks() -> str:
    """All of checks.md: the name of each check, and what it says it checks."""
    text = CHECKS_HEAD
    subjects = {
        "Families": FamilyConformance,
        "Drafters": DrafterConformance,
        "Policies": PolicyConformance,
    }
    for title, kind in subjects.items():
        text += CHECKS_TABLE.format(title=title)
        for base in reversed(kind.__mro__):
            for name in vars(base):
                if name.startswith("test_"):
                    words = name.removeprefix("test_").replace("_", " ")
                    text += f"| {words} | {title_of(base, name).replace('``', '`')} |\n"
    return text


def hooks() -> str:
    """All of hooks.md."""
    reference = runpy.run_path(str(DOCS / "hooks_reference.py"))
    text: str = reference["hooks"]()
    return text


def pages() -> dict[Path, str]:
    """Every generated page, as it should be."""
    return {
        DOCS / "modules.md": modules(),
        DOCS / "settings.md": settings(),
        DOCS / "checks.md": checks(),
        DOCS / "hooks.md": hooks(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
