"""Loads the reference cases, and measures the difference of logits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kinfolk.convert.driver import convert
from kinfolk.descriptors import Family
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, Job, OutputTensor
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.testing.driver import Driver

BOUND = 2e-4
CASES = Path(__file__).parents[1] / "data" / "cases"
F32, CONTROL = 0, 3
OF_THE_DIRECTORY = {"general.name", "general.basename"}
"""Keys that show the name of the directory a file was made from."""
NAMES = sorted(path.stem for path in CASES.glob("*.npz"))


def arrays_of(file: GGUFFile) -> dict[str, np.ndarray]:
    """The tensors of a file as float32."""
    formats = QuantFormats()
    return {
        name: QuantTensor.from_bytes(
            file.inventory.bytes(name), formats.of_type(info.ggml_type), info.shape
        )
        .dequantize()
        .numpy()
        for name, info in file.inventory.items()
    }


@cache
def contents(case: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and tensors of a reference case; the arrays cannot be written to."""
    with GGUFFile.open(CASES / f"{case}.gguf") as file:
        arrays = arrays_of(file)
        for array in arrays.values():
            array.setflags(write=False)
        return {key: file.metadata.value(key) for key in file.metadata}, arrays


@pytest.fixture(scope="session", params=NAMES)
def case(request: pytest.FixtureRequest) -> str:
    """The name of each reference case; a case is added by putting its files into the folder."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.discover(load_settings())


@pytest.fixture(scope="session")
def families(registry: Registry) -> list[Family]:
    return [provided.value for provided in registry.families.values()]


@pytest.fixture(scope="session")
def load(registry: Registry) -> Callable[..., LoadedModel]:
    """``load(path, **settings)``: a model in float32 on the CPU, with room for eight sequences."""

    def open_model(path: Path, **settings: Any) -> LoadedModel:
        options = {"device": "cpu", "dtype": "f32", "context": 1024, "slots": 8, **settings}
        return load_model(path, load_settings(**options), registry)

    return open_model


@pytest.fixture(scope="session")
def driver(load: Callable[..., LoadedModel]) -> Callable[..., Driver]:
    """``driver(case)``: a driver of a reference case, by its name."""

    @cache
    def loaded(case: str, **settings: Any) -> LoadedModel:
        return load(CASES / f"{case}.gguf", **settings)

    def drive(case: str, **settings: Any) -> Driver:
        return Driver(loaded(case, **settings))

    return drive


@pytest.fixture(scope="session")
def reference() -> Callable[[str], tuple[list[int], torch.Tensor]]:
    """``reference(case)``: its tokens [160] and the float32 logits [160, 768] of transformers."""

    def read(case: str) -> tuple[list[int], torch.Tensor]:
        stored = np.load(CASES / f"{case}.npz")
        return stored["tokens"].tolist(), torch.from_numpy(stored["logits"])

    return read


@pytest.fixture(scope="session")
def row_error() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """Largest over rows of max|a - b| / max|b|."""

    def error(a: torch.Tensor, b: torch.Tensor) -> float:
        assert a.shape == b.shape
        return float(((a - b).abs().amax(1) / b.abs().amax(1)).max())

    return error


@pytest.fixture(scope="session")
def converted(
    tmp_path_factory: pytest.TempPathFactory,
    families: list[Family],
    load: Callable[..., LoadedModel],
) -> Callable[..., LoadedModel]:
    """``converted(model)``: a transformers model, converted to a file and loaded.

    With ``in_memory`` the checkpoint holds the tensors under the names and in the shapes that they
    have in memory, which are not always those that transformers saves.
    """

    def run(model: Any, *, in_memory: bool = False) -> LoadedModel:
        folder = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder / "hf")
        if in_memory:
            tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
            save_file(tensors, folder / "hf" / "model.safetensors")
        path = folder / "model.gguf"
        convert(folder / "hf", path, outtype="f32", families=families, tokenizer=False)
        return load(path)

    return run


@pytest.fixture(scope="session")
def same_logits(
    row_error: Callable[[torch.Tensor, torch.Tensor], float],
) -> Callable[..., None]:
    """``same_logits(model, loaded, length, vocabulary=512)``: assert that a transformers model and
    the loaded one have equal logits on a random text of ids below ``vocabulary``, run at once and
    in slices."""

    def check(model: Any, loaded: LoadedModel, length: int, vocabulary: int = 512) -> None:
        assert vocabulary <= loaded.info.vocabulary
        seed = torch.Generator().manual_seed(length)
        tokens = torch.randint(0, vocabulary, (length,), generator=seed)
        with torch.inference_mode():
            expected = model(tokens[None]).logits[0]
        drive = Driver(loaded)
        whole, sliced = drive.open(), drive.open()
        in_one_piece = drive.feed({whole: tokens.tolist()})[whole]
        assert row_error(in_one_piece, expected) <= BOUND
        in_slices = drive.feed({sliced: tokens.tolist()}, rows=50)[sliced]
        assert row_error(in_slices, expected) <= BOUND

    return check


@pytest.fixture
def variant(tmp_path: Path) -> Callable[..., Path]:
    """``variant(case, tensors=f, keys=g)``: a copy of a reference case, in float32, after ``f`` has
    changed the dict of its tensors and ``g`` the dict of its metadata in place."""

    def write(
        case: str,
        tensors: Callable[[dict[str, np.ndarray]], object] = lambda tensors: None,
        keys: Callable[[dict[str, Any]], object] = lambda keys: None,
    ) -> Path:
        values, arrays = map(dict, contents(case))
        tensors(arrays)
        keys(values)
        arrays = {name: np.ascontiguousarray(array, "<f4") for name, array in arrays.items()}
        layouts = [OutputTensor(name, a.shape, F32, a.nbytes) for name, a in arrays.items()]
        path = tmp_path / f"{case}-{len(list(tmp_path.iterdir()))}.gguf"
        with GGUFOutput(path, values, layouts) as output:
            data = [a.reshape(-1).view(np.uint8) for a in arrays.values()]
            jobs = [
                Job(name, 0, lambda one=one: one) for name, one in zip(arrays, data, strict=True)
            ]
            output.run(jobs, workers=1)
        return path

    return write


@pytest.fixture
def checkpoint_of_case(tmp_path: Path) -> Callable[..., Path]:
    """``checkpoint_of_case(case, config, back, pre, settings)``: the Hugging Face model that a
    reference case was made from, in a directory.

    ``back`` computes the tensors of the checkpoint from those of the file; ``pre`` are the steps of
    the tokenizer before the byte-level one, ``settings`` are those of ``tokenizer_config.json``.
    """

    def write(
        case: str,
        config: Any,
        back: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]],
        pre: list[Any],
        settings: dict[str, Any],
    ) -> Path:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        directory = tmp_path / "hf"
        directory.mkdir()
        with GGUFFile.open(CASES / f"{case}.gguf") as file:
            tensors = {n: torch.tensor(array) for n, array in back(arrays_of(file)).items()}
            meta = file.metadata
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(directory)
        tokens = list(meta.strings("tokenizer.ggml.tokens"))
        types = meta.integers("tokenizer.ggml.token_type").tolist()
        merges = [tuple(merge.split(" ")) for merge in meta.strings("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*pre, spelled])
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(
            [text for text, kind in zip(tokens, types, strict=True) if kind == CONTROL]
        )
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        return directory

    return write


@pytest.fixture(scope="session")
def same_file() -> Callable[..., None]:
    """``same_file(path, case, added=keys, close=names)``: assert that a file holds the keys and the
    tensors of a reference case bit for bit, plus the keys ``added``; tensors whose names end in one
    of ``close`` may differ by a rounding."""

    def check(
        path: Path, case: str, added: Iterable[str] = (), close: tuple[str, ...] = ()
    ) -> None:
        with GGUFFile.open(path) as ours, GGUFFile.open(CASES / f"{case}.gguf") as theirs:
            assert set(ours.metadata) == set(theirs.metadata) | set(added)
            for key in set(theirs.metadata) - OF_THE_DIRECTORY:
                a, b = ours.metadata.value(key), theirs.metadata.value(key)
                assert a.describe() == b.describe(), key
                same = list(a.content) == list(b.content) if a.is_array else a.content == b.content
                assert same, key
            assert set(ours.inventory) == set(theirs.inventory)
            for name, info in theirs.inventory.items():
                own = ours.inventory[name]
                assert (own.shape, own.type_name) == (info.shape, info.type_name), name
                a, b = ours.inventory.bytes(name), theirs.inventory.bytes(name)
                if name.endswith(close):
                    np.testing.assert_allclose(a.view("<f4"), b.view("<f4"), rtol=3e-7)
                else:
                    assert np.array_equal(a, b), name

    return check
