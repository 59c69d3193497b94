"""Checks and reads everything a run needs before anything slow begins. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinfolk.config import ModelConfig
from kinfolk.convert.driver import outtypes
from kinfolk.descriptors import resolve
from kinfolk.engine.text import open_text
from kinfolk.errors import RequestError, SettingsError
from kinfolk.gguf.file import GGUFFile
from kinfolk.registry import Registry
from kinfolk.settings import Settings
from kinfolk.state.cache_salt import model_hash
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.train.kinds import DRAFTER_KINDS, TargetFile, TrainingPlan
from kinfolk.train.options import TrainOptions
from kinfolk.train.texts import Text, divide, fingerprint, pieces, read_documents


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run whose input is sound. ``texts`` and ``held_out`` are prompts if the model is to
    continue them. ``identity`` tells whether a checkpoint is of this run."""

    target: Path
    plan: TrainingPlan
    texts: Sequence[Text]
    held_out: Sequence[Text]
    identity: dict[str, Any]


def prepare_run(
    target: Path,
    data: Sequence[Path],
    options: TrainOptions,
    settings: Settings,
    registry: Registry,
) -> PreparedRun:
    """Raises :class:`SettingsError` or :class:`RequestError` with the option or file at fault."""
    options.check()
    formats = registry.formats()
    known = outtypes(formats)
    if options.outtype.lower() not in known:
        raise SettingsError(f"--outtype {options.outtype}: choose one of {', '.join(known)}")
    documents = read_documents(data)
    tokenizer, _, chat_format = open_text(target, settings, registry)
    with GGUFFile.open(target, formats.tensor_types()) as file:
        contents = model_hash(file)
        family = registry.family_for(file.metadata.architecture, settings.model_family)
        config: ModelConfig = family.read_config(file.metadata)
        if options.length > config.context:
            raise SettingsError(
                f"--length {options.length} is more than the context of {config.context} of "
                f"{target}"
            )
        plan: TrainingPlan = resolve(DRAFTER_KINDS[options.kind])(
            TargetFile(file, family, config, tokenizer, chat_format), options
        )
    texts, held_out = _texts(documents, tokenizer, plan.block, options)
    identity = {
        **options.identity(),
        "--data": fingerprint(documents),
        "-m": f"{config.name}, {contents}",
    }
    return PreparedRun(target, plan, texts, held_out, identity)


def _texts(
    documents: Sequence[str], tokenizer: Tokenizer, block: int, options: TrainOptions
) -> tuple[list[Text], list[Text]]:
    encoded = [tokenizer.encode(document, parse_special=False) for document in documents]
    if options.continue_ is None:
        length, least, what = options.length, block + 2, f"a block of {block} rows"
    else:
        length, least, what = options.length - options.continue_, 1, "a prompt"
    found = pieces(encoded, length, least)
    if not found:
        longest = max(map(len, encoded), default=0)
        raise RequestError(
            f"the data is too short for {what}: its longest text has {longest} tokens, and "
            f"{least} are needed; add data, or choose a smaller --block"
            + (" and a larger --length" if length < least else "")
        )
    if options.continue_ is not None:
        # Rests of long texts make short prompts that begin in the middle of something.
        found = [
            [one for one in texts if one is texts[0] or len(one.tokens) == length]
            for texts in found
        ]
    return divide(found, options.texts, options.seed)
