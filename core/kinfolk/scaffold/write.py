"""Writes a new plugin with one model family, which installs and passes its checks unchanged.

The model is a plain decoder. The files come from the templates beside this module; only variables
such as ``$name`` are substituted.
"""

from __future__ import annotations

import keyword
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Final

from kinfolk.errors import OutputError, SettingsError
from kinfolk.gguf.row_order import NEIGHBOURS
from kinfolk.hookspecs import API
from kinfolk.version import __version__

SUFFIX: Final = ".tmpl"
PACKAGE: Final = "package"
"""The template folder whose files go into the import package."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST: Final = 40

_HALVES: Final = {
    "half_split": "",
    "neighbours": "",
    "q": 'weights[f"{block}.attn_q.weight"]',
    "k": 'weights[f"{block}.attn_k.weight"]',
    "pairs": "i and i + dim / 2",
    "split": "x[..., :half], x[..., half:]",
    "join": "cat([a * cos - b * sin, a * sin + b * cos], -1)",
}
"""Template variables where files have the row order of the rope op: halves (i, i + dim / 2)."""

_NEIGHBOURS: Final = {
    "half_split": ", half_split",
    "neighbours": ", neighbours=True",
    "q": 'half_split(weights[f"{block}.attn_q.weight"], config.heads)',
    "k": 'half_split(weights[f"{block}.attn_k.weight"], config.kv_heads)',
    "pairs": "2i and 2i + 1",
    "split": "x[..., ::2], x[..., 1::2]",
    "join": "stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)",
}
"""The same variables where files of the architecture have neighbours (2i, 2i + 1)."""


_OF_THE_CORE: Final = frozenset(
    ("kinfolk", "kernels", "dense", "family", "family-base", "inventory", "weight-plan")
)
"""Names of its distributions, and those of classes that the templates import."""


@dataclass(frozen=True, slots=True)
class NewFamily:
    """A new family; its plugin and its architecture have the same ``name``.

    Raises :class:`SettingsError` if the name is not valid for all three.
    """

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST:
            raise SettingsError(
                f"{self.name!r} cannot name a family: use lower-case letters and digits, words "
                f"joined by single hyphens, a letter first, at most {_LONGEST} characters, "
                "like 'olive' or 'olive-2'"
            )
        if self.name in _OF_THE_CORE or keyword.iskeyword(self.title):
            raise SettingsError(f"the name {self.name!r} belongs to the core; choose another")

    @property
    def distribution(self) -> str:
        return f"kinfolk-{self.name}"

    @property
    def module(self) -> str:
        return f"kinfolk_{self.name.replace('-', '_')}"

    @property
    def title(self) -> str:
        """The name in the form of a class name: ``olive-2`` gives ``Olive2``."""
        return "".join(word.capitalize() for word in self.name.split("-"))

    def words(self) -> Mapping[str, str]:
        """The template variables and their values."""
        major, minor = __version__.split(".")[:2]
        return {
            "name": self.name,
            "distribution": self.distribution,
            "module": self.module,
            "title": self.title,
            "range": f">={major}.{minor},<{major}.{int(minor) + 1}",
            "api": repr(API),
            **(_NEIGHBOURS if self.name in NEIGHBOURS else _HALVES),
        }


def write_family(family: NewFamily, folder: Path) -> tuple[Path, ...]:
    """Write the plugin into ``folder`` and return the paths of its files.

    Raises :class:`OutputError` if ``folder`` is not empty or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} exists and is not empty; name a folder that does not exist")
    files = {folder / path: text for path, text in sorted(render(family).items())}
    existed = folder.exists()
    try:
        for target, text in files.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        _remove(folder, itself=not existed)
        raise OutputError.of(folder, error) from None
    return tuple(files)


def _remove(folder: Path, *, itself: bool) -> None:
    """Delete the files of a failed attempt, so that the next attempt finds an empty folder."""
    if not folder.is_dir():
        return
    for entry in [folder] if itself else list(folder.iterdir()):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def render(family: NewFamily) -> dict[Path, str]:
    """The text of each file of the plugin, by its path in the plugin's folder."""
    return dict(_render(files("kinfolk.scaffold") / "templates", Path(), family))


def _render(folder: Traversable, place: Path, family: NewFamily) -> dict[Path, str]:
    rendered: dict[Path, str] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            name = family.module if entry.name == PACKAGE else entry.name
            rendered |= _render(entry, place / name, family)
        elif entry.name.endswith(SUFFIX):
            text = Template(entry.read_text("utf-8")).substitute(family.words())
            rendered[place / entry.name.removesuffix(SUFFIX)] = text
    return rendered
