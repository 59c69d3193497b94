"""Plans a DFlash drafter for a target: weights, state and features. Torch-free."""

from __future__ import annotations

from kinfolk.draft_api import CANDIDATES, DraftPlan, TargetFacts
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.metadata import Metadata
from kinfolk.plans import Paged, Section
from kinfolk.spec.dflash.config import DFlashConfig, spread_layers
from kinfolk.spec.dflash.layouts import FC, LAYOUT_A, layout_of
from kinfolk.spec.dflash.reader import read_config
from kinfolk.spec.dflash.weights import weight_plan


def prepare(file: GGUFFile, target: TargetFacts) -> DraftPlan:
    """The plan of the drafter in ``file``.

    Raises :class:`ModelFormatError` for a file that is damaged or of another model, which names
    the file, the key or tensor and the numbers, and :class:`UnsupportedModelError` for a drafter
    with parts that are not implemented.
    """
    config = read_config(file.metadata, file.inventory)
    _check_width(file, config, target)
    _check_mask(file.metadata, config, target)
    feature_layers = config.feature_layers or _spread(file.metadata, config, target)
    vocabulary = config.vocabulary or target.config.vocabulary
    config = config.model_copy(update={"feature_layers": feature_layers, "vocabulary": vocabulary})
    sections = tuple(
        Section(name, config.kv_heads, config.head_dim, target.codec) for name in ("k", "v")
    )
    return DraftPlan(
        weights=weight_plan(config, file.metadata, file.inventory),
        state=tuple(Paged(sections, layer.window) for layer in config.layers),
        features=config.feature_layers,
        width=config.width,
        vocabulary=config.vocabulary,
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
        f"tensor {fc.name!r} takes {config.feature_count}·{config.width} numbers, but the rows of "
        f"the model {target.path} have {width}: the drafter is for another model",
        fc.name,
    )


def _spread(meta: Metadata, config: DFlashConfig, target: TargetFacts) -> tuple[int, ...]:
    """The feature layers of a file that does not list them."""
    feature_layers = spread_layers(config.feature_count, target.config.layers)
    if len(set(feature_layers)) < len(feature_layers):
        key = meta.arch_key(LAYOUT_A.feature_layers)
        raise meta.fail(
            f"key {key!r} is missing, and {config.feature_count} feature layers cannot be spread "
            f"over the {target.config.layers} of the model {target.path}",
            key,
        )
    return feature_layers


def _check_mask(meta: Metadata, config: DFlashConfig, target: TargetFacts) -> None:
    if config.mask_token >= target.config.vocabulary:
        raise meta.unsupported(
            f"masked rows have the token {config.mask_token}, but the model {target.path} has "
            f"{target.config.vocabulary} tokens: the drafter is for another model"
        )
