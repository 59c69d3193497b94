"""What a family tells the drafter ``mtp`` of the block behind its trunk. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import Codec, Paged, WeightSpec


@dataclass(frozen=True, slots=True)
class MTPBlock:
    """The decoder layer of a block: its own state, weights and layer; the rest is the drafter's.

    state     ``(config, codec) -> Paged``, its keys and values
    weights   ``(config, inventory) -> WeightSpec``\\ s of the layer, all but ``nextn.*``
    layer     a reference to ``(config, weights, context, layer) ->``
              :class:`~kinfolk.nn.key_values.StoringLayer`, which builds it over loaded weights with
              the state of entry ``layer`` of the context's plan

    ``config`` is the family's. The block's tensors are ``blk.N.*``, N the number of layers of the
    trunk.
    """

    state: Callable[[Any, Codec], Paged]
    weights: Callable[[Any, Inventory], Iterable[WeightSpec]]
    layer: str
