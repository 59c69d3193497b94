"""A plan and a file become weights, or an error of one line names the mismatch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.plans import WeightPlan, WeightSpec
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk.weights import packer
from kinfolk.weights.loader import load_weights
from kinfolk_kernels.planes import Planes, PlanesStack

Kind = gguf.GGMLQuantizationType


class Store:
    """Tensors in memory: ``inventory`` over them, ``numbers`` as gguf-py reads them."""

    def __init__(self) -> None:
        self._data: dict[str, np.ndarray] = {}
        self._infos: list[TensorInfo] = []
        self.numbers: dict[str, torch.Tensor] = {}

    def add(self, name: str, shape: tuple[int, ...], kind: Kind) -> None:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rng = np.random.default_rng(len(self._infos))
        rows = int(np.prod(shape[:-1]))
        data = rng.integers(0, 60, (rows, shape[-1] // block * size), dtype=np.uint8)
        path = Path("model.gguf")
        info = TensorInfo(name, shape, kind.value, kind.name, path, 0, 0, data.nbytes)
        self._infos.append(info)
        self._data[name] = data
        try:
            numbers = dequantize(data.copy(), kind).astype(np.float32)
        except NotImplementedError:
            return
        self.numbers[name] = torch.from_numpy(numbers.reshape(shape))

    @property
    def inventory(self) -> Inventory:
        return Inventory(self._infos, lambda t: self._data[t.name].reshape(-1), Path("model.gguf"))


@pytest.fixture
def store() -> Store:
    store = Store()
    store.add("embedding", (20, 256), Kind.Q6_K)
    store.add("norm", (256,), Kind.F32)
    store.add("fused", (12, 256), Kind.Q4_K)
    store.add("experts", (3, 4, 256), Kind.Q8_0)
    store.add("half", (5, 7), Kind.F16)
    return store


PLAN = (
    WeightSpec("embedding", (20, 256), "embedding"),
    WeightSpec("norm", (256,), "vector"),
    WeightSpec("first", (5, 256), source="fused", rows=(0, 5)),
    WeightSpec("second", (7, 256), source="fused", rows=(5, 12)),
    WeightSpec("experts", (3, 4, 256), "experts"),
    WeightSpec("half", (5, 7)),
)


@pytest.fixture
def load(store: Store) -> Callable:
    def run(*specs: WeightSpec, ignored: dict[str, str] | None = None, **options):
        plan = WeightPlan(specs or PLAN, ignored or {})
        return load_weights(plan, store.inventory, QuantFormats(), **options)

    return run


def expected(store: Store, name: str) -> torch.Tensor:
    parts = {"first": store.numbers["fused"][:5], "second": store.numbers["fused"][5:]}
    return parts.get(name, store.numbers.get(name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_everything_is_dequantised_and_vectors_stay_float32(load, store, dtype):
    weights = load(dtype=dtype)
    assert list(weights) == [spec.name for spec in PLAN]
    for spec in PLAN:
        weight = weights.tensor(spec.name)
        kind = torch.float32 if spec.role == "vector" else dtype
        assert torch.equal(weight, expected(store, spec.name).to(kind)), spec.name


def test_quantised_bytes_are_kept_where_that_saves_memory(load, store):
    weights = load(keep_quantised=True, dtype=torch.bfloat16)
    kept = {name for name, weight in weights.items() if isinstance(weight, QuantTensor)}
    assert kept == {"embedding", "first", "second", "experts"}
    for name in kept:
        assert torch.equal(weights[name].dequantize(), expected(store, name)), name
    assert weights["half"].dtype == torch.bfloat16
    with pytest.raises(TypeError, match="weight 'first' is kept as Q4_K"):
        weights.tensor("first")


def test_types_without_a_format_of_ours_are_dequantised_even_then(load, store, caplog):
    store.add("odd", (4, 256), Kind.IQ2_XS)
    store.add("odder", (4, 256), Kind.IQ2_XS)
    specs = [WeightSpec(name, (4, 256)) for name in ("odd", "odder")]
    with caplog.at_level(logging.WARNING, logger="kinfolk.quant"):
        weights = load(*specs, keep_quantised=True)
    assert torch.equal(weights["odd"], store.numbers["odd"])
    assert [r.getMessage() for r in caplog.records if "IQ2_XS" in r.getMessage()] == [
        "weights of type IQ2_XS are dequantised when the model is loaded: they take the memory "
        "of unquantised ones"
    ]


def test_two_names_of_one_tensor_share_memory(load, store):
    specs = [
        WeightSpec("embedding", (20, 256), "embedding"),
        WeightSpec("head", (20, 256), source="embedding"),
    ]
    weights = load(*specs)
    assert weights["head"].data_ptr() == weights["embedding"].data_ptr()
    assert weights.nbytes == 20 * 256 * 4


def test_a_part_of_a_vector_is_taken_by_elements(load, store):
    weights = load(WeightSpec("part", (16,), "vector", source="norm", rows=(3, 19)))
    assert torch.equal(weights["part"], store.numbers["norm"][3:19])


def test_rows_of_stacked_matrices_are_taken_by_their_leading_index(load, store):
    weights = load(WeightSpec("one", (1, 4, 256), source="experts", rows=(1, 2)))
    assert torch.equal(weights["one"], store.numbers["experts"][1:2])


def test_leading_ones_make_no_difference(load, store):
    weights = load(WeightSpec("gate", (1, 256), source="norm"))
    assert torch.equal(weights["gate"], store.numbers["norm"].reshape(1, 256))


def test_large_tensors_are_dequantised_in_pieces_to_the_same_numbers(load, store):
    store.add("large", (1500, 1024), Kind.Q4_0)
    weights = load(WeightSpec("large", (1500, 1024)))
    assert torch.equal(weights["large"], store.numbers["large"])


def test_weights_loaded_in_inference_mode_are_the_same(load, store):
    with torch.inference_mode():
        weights = load()
    assert torch.equal(weights["second"], expected(store, "second"))
    weights["second"].mul_(1)


def test_progress_counts_stored_bytes_to_the_end(load, store):
    seen = []
    load(progress=lambda *report: seen.append(report))
    done, total, _ = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert done[-1] == total[0] == store.inventory.nbytes
    assert {name for *_, name in seen} == set(store.inventory)


def test_an_exception_in_the_progress_callback_ends_loading(load):
    def stop(done, total, name):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(progress=stop)


def test_a_missing_tensor_is_named_with_what_needs_it(load):
    with pytest.raises(ModelFormatError, match="tensor 'gone' is missing; weight 'w'") as raised:
        load(WeightSpec("w", (4, 4), source="gone"))
    assert raised.value.key == "gone"
    assert str(raised.value).startswith("model.gguf: ")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            WeightSpec("norm", (128,), "vector"),
            r"tensor 'norm' has shape \(256,\), weight 'norm' expects \(128,\)",
        ),
        (
            WeightSpec("w", (256, 20), source="embedding"),
            r"tensor 'embedding' has shape \(20, 256\), weight 'w' expects \(256, 20\)",
        ),
        (
            WeightSpec("w", (256, 1), source="norm"),
            r"tensor 'norm' has shape \(256,\), weight 'w' expects \(256, 1\)",
        ),
        (
            WeightSpec("w", (4, 256), source="fused", rows=(5, 10)),
            r"tensor 'fused' has shape \(5, 256\) in rows 5 to 10, weight 'w' expects \(4, 256\)",
        ),
        (
            WeightSpec("w", (9, 256), source="fused", rows=(5, 14)),
            r"tensor 'fused' has shape \(12, 256\), but weight 'w' is its rows 5 to 14",
        ),
    ],
)
def test_a_wrong_shape_is_named_with_both_shapes(load, spec, message):
    with pytest.raises(ModelFormatError, match=message):
        load(spec)


def test_a_vector_cut_inside_a_block_is_refused(load, store):
    store.add("coarse", (256,), Kind.Q8_0)
    with pytest.raises(ModelFormatError, match="inside a block of 32"):
        load(WeightSpec("w", (16,), "vector", source="coarse", rows=(8, 24)))


def test_a_tensor_of_an_unreadable_type_is_named(load, store):
    store.add("ids", (4, 256), Kind.I32)
    with pytest.raises(UnsupportedModelError, match="tensor 'ids': tensors of type I32"):
        load(WeightSpec("ids", (4, 256)))


def test_unknown_tensors_are_listed_once_and_ignored_ones_are_not(load, store, caplog):
    for number in range(12):
        store.add(f"extra.{number}", (4,), Kind.F32)
    ignored = {"extra.0": "a later block", "embedding": "x", "fused": "x", "experts": "x"}
    with caplog.at_level(logging.WARNING, logger="kinfolk.weights"):
        load(WeightSpec("norm", (256,), "vector"), ignored=ignored)
    (record,) = caplog.records
    message = record.getMessage()
    assert "12 tensors are not used by this model: half, extra.1, extra.2" in message
    assert message.endswith("and 4 more")
    assert "extra.0," not in message


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.bias", "blk.0.attn_q.scale", "blk.0.attn_sinks.weight", "output.bias"]
)
def test_a_tensor_passed_over_in_a_layer_that_is_used_is_refused(load, store, name):
    used = ("blk.0.attn_q.weight", "output.weight")
    for known in (*used, "blk.1.attn_q.bias", "extra", name):
        store.add(known, (4,), Kind.F32)
    plan = [WeightSpec(known, (4,), "vector") for known in used]
    with pytest.raises(UnsupportedModelError, match=f"nothing in this model uses {name}, which"):
        load(*plan)
    load(*plan, ignored={name: "known to be zero"})


def test_nothing_is_read_before_everything_was_checked(store):
    reads = []
    inventory = Inventory(store.inventory.values(), lambda tensor: reads.append(tensor))
    plan = WeightPlan((*PLAN, WeightSpec("gone", (1,))))
    with pytest.raises(ModelFormatError, match="'gone'"):
        load_weights(plan, inventory, QuantFormats())
    assert reads == []


def test_weights_of_a_real_file_outlive_it(cases):
    path = cases / "qwen35.gguf"
    with GGUFFile.open(path) as file:
        specs = [
            WeightSpec(name, info.shape, "vector" if len(info.shape) == 1 else "matrix")
            for name, info in file.inventory.items()
        ]
        weights = load_weights(WeightPlan(tuple(specs)), file.inventory, QuantFormats())
    for tensor in gguf.GGUFReader(path).tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        assert np.array_equal(weights[tensor.name].numpy().reshape(numbers.shape), numbers)


# -- planes ---------------------------------------------------------------------------------------


def test_planes_hold_the_numbers_of_the_file_and_the_rest_says_why_not(load, store):
    store.add("odd", (3, 96), Kind.Q8_0)
    store.add("grid", (4, 256), Kind.IQ3_S)
    odd, grid = WeightSpec("odd", (3, 96)), WeightSpec("grid", (4, 256))
    weights = load(*PLAN, odd, grid, activations="f16", dtype=torch.float16)
    for name in ("embedding", "first", "second"):
        assert isinstance(weights[name], Planes)
        assert weights[name].activations == "f16"
        assert torch.equal(weights[name].dequantize(), expected(store, name))
    for name in ("norm", "half", "odd", "grid", "experts"):
        assert isinstance(weights[name], torch.Tensor)
    assert weights.packed == {"Q6_K": 1, "Q4_K": 2}
    assert weights.refused == {
        ("Q8_0", "rows of 96 weights are no multiple of 64"): 1,
        ("Q8_0", "matrices of 4 rows in a stack, no multiple of 8"): 1,
        ("IQ3_S", "no planes for IQ3_S"): 1,
    }


def test_a_matrix_is_repacked_in_pieces_as_in_one_go(load, store, monkeypatch):
    store.add("long", (23, 256), Kind.Q5_K)
    whole = load(WeightSpec("long", (23, 256)), activations="int8")["long"]
    monkeypatch.setattr(packer, "PIECE", 1000)
    pieces = load(WeightSpec("long", (23, 256)), activations="int8")["long"]
    assert all(map(torch.equal, whole.tensors, pieces.tensors))
    assert torch.equal(whole.dequantize(), store.numbers["long"])


def test_a_stack_becomes_planes_for_each_of_its_matrices(load, store):
    store.add("stack", (3, 8, 256), Kind.Q4_K)
    stack = load(WeightSpec("stack", (3, 8, 256), "experts"), activations="int8")["stack"]
    assert isinstance(stack, PlanesStack)
    assert stack.shape == (3, 8, 256)
    numbers = store.numbers["stack"]
    for index in range(3):
        assert torch.equal(stack[index].dequantize(), numbers[index])
        assert torch.equal(stack.part(4, 8)[index].dequantize(), numbers[index, 4:])
    turned = stack.select(torch.tensor([2, 0]))
    assert torch.equal(turned[0].dequantize(), numbers[2])
    assert all(map(torch.equal, (plane[1] for plane in turned.tensors), stack[0].tensors))


def test_planes_of_a_tied_head_are_the_tables(load, store):
    head = WeightSpec("head", (20, 256), source="embedding")
    weights = load(PLAN[0], head, activations="int8")
    assert weights["head"].q.data_ptr() == weights["embedding"].q.data_ptr()
    assert weights.nbytes == weights["head"].nbytes
    assert weights.packed == {"Q6_K": 1}


def test_progress_counts_repacked_bytes_too(load, store):
    seen = []
    load(activations="int8", progress=lambda done, total, name: seen.append((done, total, name)))
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    assert len(seen) == len(PLAN)
