"""Checks and reads everything a run needs before anything slow begins. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinfolk.config import ModelConfig
from kinfolk.convert.driver import outtypes
from kinfolk.engine.text import open_text
from kinfolk.errors import RequestError, SettingsError
from kinfolk.gguf.file import GGUFFile
from kinfolk.quant.formats import QuantFormats
from kinfolk.registry import Registry
from kinfolk.settings import Settings
from kinfolk.text.formats import ChatFormat
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.vocabulary import TokenType, read_vocabulary
from kinfolk.train.dflash.shape import DrafterShape, choose_shape
from kinfolk.train.options import TrainOptions
from kinfolk.train.texts import Text, divide, fingerprint, pieces, read_documents

_MASK_KEY = "tokenizer.ggml.mask_token_id"


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run whose input is sound. ``texts`` and ``held_out`` are prompts if the model is to
    continue them. ``identity`` tells whether a checkpoint is of this run."""

    target: Path
    shape: DrafterShape
    texts: Sequence[Text]
    held_out: Sequence[Text]
    name: str
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
    known = outtypes(QuantFormats([provided.value for provided in registry.quant_formats]))
    if options.outtype.lower() not in known:
        raise SettingsError(f"--outtype {options.outtype}: choose one of {', '.join(known)}")
    documents = read_documents(data)
    tokenizer, _, chat_format = open_text(target, settings, registry)
    with GGUFFile.open(target) as file:
        meta = file.metadata
        config: ModelConfig = registry.family_for(
            meta.architecture, settings.model_family
        ).read_config(meta)
        mask = _mask_token(meta, tokenizer, chat_format, options.mask_token)
    if options.length > config.context:
        raise SettingsError(
            f"--length {options.length} is more than the context of {config.context} of {target}"
        )
    shape = choose_shape(
        config,
        mask_token=mask,
        vocabulary=config.vocabulary,
        block=options.block,
        layers=options.layers,
        window=options.window,
        heads=options.heads,
        kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        feed_forward=options.feed_forward,
        feature_layers=options.feature_layers,
        gamma=options.gamma,
    )
    texts, held_out = _texts(documents, tokenizer, options)
    identity = {
        **options.identity(),
        "--data": fingerprint(documents),
        "-m": f"{config.name}, {target.stat().st_size} bytes",
    }
    return PreparedRun(target, shape, texts, held_out, config.name, identity)


def _texts(
    documents: Sequence[str], tokenizer: Tokenizer, options: TrainOptions
) -> tuple[list[Text], list[Text]]:
    encoded = [tokenizer.encode(document, parse_special=False) for document in documents]
    if options.continue_ is None:
        length, least, what = options.length, options.block + 2, f"a block of {options.block} rows"
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


def _mask_token(
    meta: Any, tokenizer: Tokenizer, chat_format: ChatFormat, stated: int | None
) -> int:
    """The token of rows to guess: what the file says, an unused one, or a control token."""
    vocabulary = read_vocabulary(meta, chat_format)
    count = len(vocabulary.texts)
    if stated is not None:
        if stated >= count:
            raise SettingsError(
                f"--mask-token {stated} is no token of {meta.path}, which has {count}"
            )
        return stated
    if _MASK_KEY in meta:
        return int(meta.integer(_MASK_KEY, minimum=0, maximum=count - 1))
    ends = {vocabulary.bos, vocabulary.eos, *vocabulary.eog}
    for kind in (TokenType.UNUSED, TokenType.CONTROL):
        found = [n for n in range(count) if vocabulary.types[n] is kind and n not in ends]
        if found:
            return found[-1]
    raise SettingsError(
        f"{meta.path} has no unused and no control token to mark rows with; name one that texts "
        "do not have with --mask-token"
    )
