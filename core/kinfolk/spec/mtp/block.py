"""What a family tells the drafter ``mtp`` of the block behind its trunk. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kinfolk.config import Rope
from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import Codec, Paged, WeightSpec


@dataclass(frozen=True, slots=True)
class TrainedLayer:
    """What the training of a block must know of its layer, beside its weights.

    The layer adds attention behind ``attn_norm`` and a feed-forward network behind
    ``post_attention_norm`` to its input. Rows of ``attn_q`` are, head by head, a query and a gate,
    whose sigmoid multiplies what the head found. Queries and keys have norms, the first dimensions
    of a head turn by ``rope``, and scores are scaled by 1 / sqrt(head_dim).

    like           a layer of the trunk with attention: the block gets its entries of the file's
                   keys for each layer
    feed_forward   a reference to ``(config, weight, x) -> y``, with gradients: x and y float32
                   [n, width], ``weight(name)`` the tensor ``blk.N.<name>.weight``
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    like: int
    feed_forward: str


@dataclass(frozen=True, slots=True)
class MTPBlock:
    """The decoder layer of a block: its own state, weights and layer; the rest is the drafter's.

    state     ``(config, codec) -> Paged``, its keys and values
    weights   ``(config, inventory) -> WeightSpec``\\ s of the layer, all but ``nextn.*``
    layer     a reference to ``(config, weights, context, layer) ->``
              :class:`~kinfolk.nn.key_values.StoringLayer`, which builds it over loaded weights with
              the state of entry ``layer`` of the context's plan
    trained   ``(config) -> TrainedLayer``; ``None`` = the block cannot be trained here

    ``config`` is the family's. The block's tensors are ``blk.N.*``, N the number of layers of the
    trunk.
    """

    state: Callable[[Any, Codec], Paged]
    weights: Callable[[Any, Inventory], Iterable[WeightSpec]]
    layer: str
    trained: Callable[[Any], TrainedLayer] | None = None
