"""Configuration of an assistant: keys and tensors of its file, and the target's layers it reads.

Torch-free. Names are those of llama.cpp's architecture ``gemma4-assistant``; files that were made
before it was merged there spell some of them differently.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.gguf.metadata import Metadata
from kinfolk.spec.reduced_head import head_tokens
from kinfolk_gemma4.config import Gemma4Config, layer_fields

ARCHITECTURE: Final = "gemma4-assistant"

INPUTS: Final = "nextn.pre_projection.weight"
OUTPUTS: Final = "nextn.post_projection.weight"
CENTROIDS: Final = "masked_embd_centroids.weight"
CLUSTERS: Final = "masked_embd_ordering"
TABLE: Final = "token_embd.weight"

TARGET_WIDTH: Final = "embedding_length_out"
BEST_CLUSTERS: Final = "centroid_top_k"

_EARLIER: Final = {
    INPUTS: "mtp.pre_projection.weight",
    OUTPUTS: "mtp.post_projection.weight",
    CENTROIDS: "mtp.centroids.weight",
    CLUSTERS: "mtp.token_ordering.weight",
}
_DEFAULT_BEST: Final = 32
"""Clusters of all released assistants that have any."""


class AssistantConfig(Gemma4Config):
    """An assistant beside its target. ``owner`` is the target's layer whose keys and values a layer
    reads; the assistant makes none.

    ``clusters`` are the tokens in the order of the file: cluster c of n has the c-th of n equal
    parts. A row is compared with the tokens of the ``best_clusters`` whose centroids it is nearest
    to. Without clusters it is compared with all tokens.
    """

    target_width: int = Field(gt=0)
    clusters: tuple[int, ...] = ()
    centroids: int = Field(default=0, ge=0)
    best_clusters: int = Field(default=0, ge=0)

    def owns_keys(self, layer: int) -> bool:
        return False


def tensor_named(inventory: Inventory, name: str) -> str:
    """The name that a tensor has in this file."""
    earlier = _EARLIER.get(name, name)
    return earlier if earlier in inventory and name not in inventory else name


def read_config(file: GGUFFile, target: Gemma4Config, target_path: object) -> AssistantConfig:
    """The configuration of an assistant for ``target``.

    Raises :class:`ModelFormatError` or :class:`UnsupportedModelError`, which name file, key or
    tensor, and numbers.
    """
    meta, inventory = file.metadata, file.inventory
    fields = layer_fields(meta)
    for name in ("embedding_length_per_layer_input", "expert_count"):
        number = meta.integer(meta.arch_key(name), default=0, minimum=0)
        if number:
            raise meta.unsupported(f"key {meta.arch_key(name)!r} is {number}; assistants have 0")
    shape = AssistantConfig(
        **fields,
        owner=(0,) * fields["layers"],
        input_width=0,
        softcap=0,
        top_k=0,
        expert_width=0,
        target_width=_target_width(meta, inventory),
    )
    if shape.target_width != target.width:
        name = tensor_named(inventory, INPUTS)
        raise meta.fail(
            f"tensor {name!r} takes 2·{shape.target_width} numbers, but the rows of the model "
            f"{target_path} have {target.width}: the assistant is for another model",
            name,
        )
    for layer in range(shape.layers):
        # Models may lack it, assistants never do.
        _tensor(meta, inventory, f"blk.{layer}.layer_output_scale.weight")
    owners = tuple(_owner(meta, shape, layer, target, target_path) for layer in range(shape.layers))
    return shape.model_copy(update={"owner": owners, **_clusters(meta, inventory, shape)})


def _target_width(meta: Metadata, inventory: Inventory) -> int:
    info = _tensor(meta, inventory, INPUTS)
    columns = info.shape[-1]
    width = meta.integer(meta.arch_key(TARGET_WIDTH), default=columns // 2, minimum=1)
    if columns != 2 * width:
        raise meta.fail(
            f"tensor {info.name!r} takes {columns} numbers, expected twice the {width} of key "
            f"{meta.arch_key(TARGET_WIDTH)!r}",
            info.name,
        )
    return width


def _tensor(meta: Metadata, inventory: Inventory, name: str) -> TensorInfo:
    found = tensor_named(inventory, name)
    if found not in inventory:
        raise meta.fail(f"tensor {name!r} is missing", name)
    return inventory[found]


# -- the target's layers --------------------------------------------------------------------------


def _owner(
    meta: Metadata, shape: AssistantConfig, layer: int, target: Gemma4Config, target_path: object
) -> int:
    """The layer of the target whose keys and values the assistant's ``layer`` reads: those that the
    target's last layer of the same kind reads."""
    windowed = shape.windowed[layer]
    kind, suffix = ("windowed", "_swa") if windowed else ("full-attention", "")
    alike = [index for index in range(target.layers) if target.windowed[index] == windowed]
    if not alike:
        key = meta.arch_key("attention.sliding_window_pattern")
        raise meta.fail(
            f"key {key!r}: layer {layer} reads the keys and values of the last {kind} layer of the "
            f"model {target_path}, which has {target.layers} layers and none of that kind",
            key,
        )
    owner = target.owner[alike[-1]]
    for name, mine, theirs in (
        (f"attention.key_length{suffix}", shape.head_dim[layer], target.head_dim[owner]),
        ("attention.head_count_kv", shape.kv_heads[layer], target.kv_heads[owner]),
        ("attention.sliding_window", shape.window, target.window) if windowed else ("", 0, 0),
    ):
        if mine != theirs:
            key = meta.arch_key(name)
            raise meta.fail(
                f"key {key!r} is {mine} in layer {layer}, which reads the keys and values of layer "
                f"{owner} of the model {target_path}, where it is {theirs}",
                key,
            )
    return owner


# -- the head -------------------------------------------------------------------------------------


def _clusters(meta: Metadata, inventory: Inventory, shape: AssistantConfig) -> dict[str, object]:
    """The fields of a head with clusters; none if the file has neither of its tensors."""
    if not any(tensor_named(inventory, name) in inventory for name in (CENTROIDS, CLUSTERS)):
        return {}
    count = _tensor(meta, inventory, CENTROIDS).shape[0]
    info = _tensor(meta, inventory, CLUSTERS)
    tokens = head_tokens(inventory, info, shape.vocabulary)
    if len(tokens) != shape.vocabulary or len(tokens) % count:
        raise meta.fail(
            f"tensor {info.name!r} lists {len(tokens)} tokens, expected all {shape.vocabulary}, in "
            f"{count} clusters of one size",
            info.name,
        )
    best = meta.integer(
        meta.arch_key(BEST_CLUSTERS), default=min(_DEFAULT_BEST, count), minimum=1, maximum=count
    )
    return {"clusters": tokens, "centroids": count, "best_clusters": best}
