"""Opens the tokenizer and chat template of a model file, without weights and without torch."""

from __future__ import annotations

from pathlib import Path

from kinfolk.gguf.file import GGUFFile
from kinfolk.registry import Registry
from kinfolk.settings import Settings
from kinfolk.text.chat import ChatTemplate
from kinfolk.text.formats import ChatFormat
from kinfolk.text.tokenizer import Tokenizer


def open_text(
    path: Path, settings: Settings, registry: Registry
) -> tuple[Tokenizer, ChatTemplate | None, ChatFormat]:
    """Tokenizer, chat template (``None`` if the file has none) and chat format of a file."""
    with GGUFFile.open(path, registry.formats().tensor_types()) as file:
        meta = file.metadata
        family = registry.family_for(meta.architecture, settings.model_family)
        chat_format = family.chat(meta)
        tokenizer = Tokenizer.from_metadata(
            meta,
            [provided.value for provided in registry.families.values()],
            own=family.name,
            chat=chat_format,
        )
        return tokenizer, ChatTemplate.from_metadata(meta, tokenizer, chat_format), chat_format
