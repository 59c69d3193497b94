"""Copy drafters without the vocabulary, which the model's own file has:
``python -m pocket.bare DRAFTER... --out DIR``.

Both drafters of the package are then 8 MB, not 8.5. What is lost is that a vocabulary of another
model is refused; its size, and the width of rows, still are.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, Job, OutputTensor
from kinfolk.gguf.values import ByteArray

MASK = "tokenizer.ggml.mask_token_id"


def copy(path: Path, out: Path) -> None:
    with GGUFFile.open(path) as file:
        meta, inventory = file.metadata, file.inventory
        keys = {
            key: meta.value(key) for key in meta if key == MASK or not key.startswith("tokenizer.")
        }
        tensors = [
            OutputTensor(name, info.shape, info.ggml_type, info.nbytes)
            for name, info in inventory.items()
        ]

        def stored(name: str) -> ByteArray:
            return inventory.bytes(name).reshape(-1)

        with GGUFOutput(out, keys, tensors, overwrite=True) as output:
            output.run((Job(name, 0, partial(stored, name)) for name in inventory), workers=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafters", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.drafters:
        copy(path, options.out / path.name)


if __name__ == "__main__":
    main()
