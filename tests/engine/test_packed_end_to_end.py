"""A quantised model whose matrices are in planes, through the engine, against its definition.

Widths are tiny, so everything runs in Triton's interpreter; 160 columns are no multiple of 64, and
those matrices stay numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.score import logits
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, OutputTensor
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk_kernels.planes import Planes

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(900)]

CASES = sorted(path.stem for path in (Path(__file__).parents[1] / "data/cases").glob("*.gguf"))
FIRST = "qwen35"
FORMATS = ("Q4_0", "Q5_0", "Q8_0")
TOKENS = [5, 300, 71, 9, 640, 2, 33, 500]
EXACT, HALF, INT8 = 1e-5, 5e-3, 1e-1


def quantised(source: Path, path: Path) -> Path:
    """A reference case with its matrices in three formats in turn."""
    formats, stored = QuantFormats(), {}
    with GGUFFile.open(source) as file:
        for name, info in file.inventory.items():
            raw = file.inventory.bytes(name)
            kind = formats.of_type(info.ggml_type)
            target = formats.named(FORMATS[len(stored) % 3])
            if kind.name == "BF16" and info.shape[-1] % 32 == 0:
                numbers = QuantTensor.from_bytes(raw, kind, info.shape).dequantize().numpy()
                raw, kind = quantize(numbers, GGMLQuantizationType[target.name]), target
            stored[name] = info.shape, kind.ggml_type, np.ascontiguousarray(raw)
        metadata = {key: file.metadata.value(key) for key in file.metadata}
    tensors = [OutputTensor(n, s, kind, raw.nbytes) for n, (s, kind, raw) in stored.items()]
    with GGUFOutput(path, metadata, tensors) as output:
        for name, (_, _, raw) in stored.items():
            output.write(name, raw.tobytes())
    return path


@pytest.fixture(scope="module")
def load(cases, tmp_path_factory) -> Callable[..., LoadedModel]:
    """``load(case, **settings)``: the quantised form of a reference case."""
    registry = Registry.discover(load_settings())
    folder = tmp_path_factory.mktemp("planes")

    def run(case: str = FIRST, **settings) -> LoadedModel:
        path = folder / f"{case}.gguf"
        if not path.exists():
            quantised(cases / path.name, path)
        fixed = {"device": "cpu", "dtype": "f32", "context": 64, "slots": 1}
        return load_model(path, load_settings(**fixed, **settings), registry)

    return run


def scores(model: LoadedModel, rows: int, count: int) -> torch.Tensor:
    return torch.cat(list(logits(model, TOKENS[:count], chunk=rows)))


@pytest.fixture(scope="module")
def expected(load) -> torch.Tensor:
    return scores(load(weights="dense", op="linear=reference"), 8, 8)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("case", CASES)
def test_planes_are_the_same_model(load, case):
    model = load(case, weights="packed")
    assert model.packed
    assert all("no multiple of" in reason for _, reason in model.refused)
    found, expected = scores(model, 8, 8), scores(load(case, weights="dense"), 8, 8)
    assert error(found, expected) <= EXACT


def test_matrices_of_other_widths_stay_numbers(load):
    model = load(weights="packed")
    assert isinstance(model.model.output.weight, Planes)
    assert {reason for _, reason in model.refused} == {"rows of 160 weights are no multiple of 64"}


def test_eight_rows_on_the_matrix_unit(load, expected):
    model = load(weights="packed", op="linear=triton,embedding=triton")
    assert EXACT < error(scores(model, 8, 8), expected) <= INT8 * 1.5  # the worst of eight
    ran = {(d.op, d.backend) for d in model.ops.decisions.values()}
    assert {("linear", "triton"), ("embedding", "triton")} <= ran


@pytest.mark.parametrize(("activations", "bound"), [("int8", INT8), ("f16", HALF)])
def test_one_row_in_the_activations_asked_for(load, expected, activations, bound):
    model = load(weights="packed", activations=activations, op="linear=triton")
    found = error(scores(model, 1, 1), expected[:1])
    assert bound / 100 < found <= bound
