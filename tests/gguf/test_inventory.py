"""The inventory is a mapping, with or without tensor data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kinfolk.gguf.inventory import Inventory, TensorInfo


def info(name: str, shape: tuple[int, ...], nbytes: int) -> TensorInfo:
    return TensorInfo(name, shape, 0, "F32", Path("m.gguf"), 0, 0, nbytes)


def test_names_keep_the_order_of_the_file():
    inventory = Inventory([info("b", (2, 3), 24), info("a", (4,), 16)])
    assert list(inventory) == ["b", "a"]
    assert inventory.nbytes == 40
    assert inventory["b"].row_bytes == 12
    assert (inventory["a"].rows, inventory["a"].row_bytes) == (1, 16)


def test_bytes_have_a_row_for_every_leading_index():
    data = np.arange(48, dtype=np.uint8)
    inventory = Inventory([info("x", (2, 3, 2), 48)], lambda tensor: data[: tensor.nbytes])
    assert inventory.bytes("x").shape == (6, 8)


def test_an_inventory_of_shapes_alone_has_no_bytes():
    with pytest.raises(ValueError, match="holds no bytes"):
        Inventory([info("a", (4,), 16)]).bytes("a")
