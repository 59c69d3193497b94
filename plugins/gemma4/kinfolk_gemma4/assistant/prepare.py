"""Plans an assistant: weights, the target's layers that it reads, state. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from kinfolk.draft_api import CANDIDATES, DraftPlan, TargetFacts
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import Recurrent, RecurrentTensor, Shared, WeightPlan, WeightSpec
from kinfolk.spec.mtp.prepare import HIDDEN_STATE, PASSES
from kinfolk_gemma4.assistant.config import (
    CENTROIDS,
    CLUSTERS,
    INPUTS,
    OUTPUTS,
    TABLE,
    AssistantConfig,
    read_config,
    tensor_named,
)
from kinfolk_gemma4.config import Gemma4Config
from kinfolk_gemma4.weights import layer_weights


def prepare(file: GGUFFile, target: TargetFacts) -> DraftPlan:
    """The plan of the assistant in ``file``.

    Raises :class:`ModelFormatError` for a file that is damaged, no assistant, or one of another
    target, and :class:`UnsupportedModelError` for a target of another family.
    """
    meta, inventory = file.metadata, file.inventory
    if not isinstance(target.config, Gemma4Config):
        raise meta.unsupported(
            f"architecture {meta.architecture!r} drafts for models of family 'gemma4', "
            f"{target.path} is one of {target.family!r}"
        )
    config = read_config(file, target.config, target.path)
    passes = target.draft_tokens or PASSES
    return DraftPlan(
        weights=_weight_plan(config, inventory),
        state=(
            *(Shared(layer) for layer in config.owner),
            Recurrent((RecurrentTensor(HIDDEN_STATE, (config.target_width,)),)),
        ),
        final=True,
        width=config.target_width,
        vocabulary=config.vocabulary,
        depth=passes,
        columns=min(CANDIDATES, _compared(config)),
        config=config,
    )


def _compared(config: AssistantConfig) -> int:
    """How many tokens a row is compared with."""
    if not config.centroids:
        return config.vocabulary
    return config.vocabulary // config.centroids * config.best_clusters


def _weight_plan(config: AssistantConfig, inventory: Inventory) -> WeightPlan:
    weights = [*_around_layers(config, inventory)]
    for layer in range(config.layers):
        weights += layer_weights(config, inventory, layer)
    clusters = tensor_named(inventory, CLUSTERS)
    ignored = {clusters: "read with the configuration, as integers"} if config.centroids else {}
    return WeightPlan(tuple(weights), ignored)


def _around_layers(config: AssistantConfig, inventory: Inventory) -> Iterator[WeightSpec]:
    width, target = config.width, config.target_width
    for name, shape in ((INPUTS, (width, 2 * target)), (OUTPUTS, (target, width))):
        yield WeightSpec(name, shape, source=tensor_named(inventory, name))
    yield WeightSpec("output_norm.weight", (width,), "vector")
    if config.has_full_layers:
        yield WeightSpec("rope_freqs.weight", (config.rope.dims // 2,), "vector")
    # Only the head has a table: embeddings are the target's.
    table = (config.vocabulary, width)
    if config.centroids:
        yield WeightSpec(TABLE, table, "embedding")
        source = tensor_named(inventory, CENTROIDS)
        yield WeightSpec(CENTROIDS, (config.centroids, width), source=source)
    else:
        yield WeightSpec(TABLE, table)
