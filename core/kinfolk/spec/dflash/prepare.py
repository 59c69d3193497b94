"""Plans a DFlash drafter for a target: weights, state and features. Torch-free."""

from __future__ import annotations

from typing import Final

from kinfolk.draft_api import DraftPlan, TargetFacts
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.metadata import Metadata
from kinfolk.plans import Codec, Paged, Section
from kinfolk.spec.dflash.config import DFlashConfig, captured_layers
from kinfolk.spec.dflash.layouts import FC, layout_of
from kinfolk.spec.dflash.reader import read_config
from kinfolk.spec.dflash.weights import weight_plan

CANDIDATES: Final = 8
"""Candidates for each token: trees seldom have more siblings."""

_TOKENS: Final = "tokenizer.ggml.tokens"


def prepare(file: GGUFFile, target: TargetFacts) -> DraftPlan:
    """The plan of the drafter in ``file``.

    Raises :class:`ModelFormatError` for a file that is damaged or of another model, which names
    the file, the key or tensor and the numbers, and :class:`UnsupportedModelError` for a drafter
    with parts that are not implemented.
    """
    config = read_config(file.metadata, file.inventory)
    _check_width(file, config, target)
    _check_vocabulary(file.metadata, config, target)
    config = config.model_copy(
        update={
            "captures": _captures(file, config, target),
            "vocabulary": target.config.vocabulary,
        }
    )
    codec = _codec(target, config.head_dim)
    sections = tuple(Section(name, config.kv_heads, config.head_dim, codec) for name in ("k", "v"))
    return DraftPlan(
        weights=weight_plan(config, file.metadata, file.inventory),
        state=tuple(Paged(sections, layer.window) for layer in config.layers),
        features=config.captures,
        block=config.block,
        depth=config.block - 1,
        columns=min(CANDIDATES, config.head_rows or CANDIDATES, _candidates(config)),
        fill=config.mask_token,
        config=config,
    )


def _candidates(config: DFlashConfig) -> int:
    return CANDIDATES if config.selector is None else config.selector.top_k


def _check_width(file: GGUFFile, config: DFlashConfig, target: TargetFacts) -> None:
    width = target.config.width
    if config.width == width:
        return
    fc = layout_of(file.metadata, file.inventory).tensor(file.inventory, FC)
    raise file.metadata.fail(
        f"tensor {fc.name!r} takes {config.capture_count}·{config.width} numbers, but the rows of "
        f"the model {target.path} have {width}: the drafter is for another model",
        fc.name,
    )


def _captures(file: GGUFFile, config: DFlashConfig, target: TargetFacts) -> tuple[int, ...]:
    layers = target.config.layers
    captures = config.captures or captured_layers(config.capture_count, layers)
    beyond = [layer for layer in captures if not 0 <= layer < layers]
    if beyond or len(set(captures)) < len(captures):
        layout = layout_of(file.metadata, file.inventory)
        key = file.metadata.arch_key(layout.captures)
        stated = f"key {key!r} lists" if config.captures else f"key {key!r} is missing, so it reads"
        what = f"layer {beyond[0]}" if beyond else f"{list(captures)}, a layer twice,"
        raise file.metadata.fail(
            f"{stated} the output of {what} of a model, but {target.path} has {layers} layers, "
            f"0 to {layers - 1}: the drafter is for another model",
            key,
        )
    return captures


def _check_vocabulary(meta: Metadata, config: DFlashConfig, target: TargetFacts) -> None:
    size = target.config.vocabulary
    key = _TOKENS if _TOKENS in meta else meta.arch_key("vocab_size")
    if config.vocabulary not in (None, size):
        raise meta.fail(
            f"key {key!r} tells of {config.vocabulary} tokens, but the model {target.path} has "
            f"{size}: the drafter is for another model",
            key,
        )
    for token in (config.mask_token, *config.draft_ids):
        if token >= size:
            raise meta.fail(
                f"token {token} of the drafter does not exist: the model {target.path} has {size}",
                key,
            )
    if _TOKENS in meta and _TOKENS in target.metadata:
        own, others = meta.strings(_TOKENS), target.metadata.strings(_TOKENS)
        for token, (one, other) in enumerate(zip(own, others, strict=True)):
            if one != other:
                raise meta.fail(
                    f"key {_TOKENS!r}: token {token} is {one!r}, but in the model {target.path} "
                    f"{other!r}: the drafter is for another model",
                    _TOKENS,
                )


def _codec(target: TargetFacts, head_dim: int) -> Codec:
    """The storage of the target's keys, if heads of the drafter's size can be stored so."""
    paged = next((layer for layer in target.state.layers if isinstance(layer, Paged)), None)
    codec = Codec() if paged is None else paged.sections[0].codec
    power = head_dim & (head_dim - 1) == 0
    fits = (codec.format in ("f32", "f16", "bf16") or head_dim % 32 == 0) and (
        codec.rotation == "none" or power
    )
    return codec if fits else Codec()
