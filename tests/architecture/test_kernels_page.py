"""The quotations, drawings and numbers of docs/kernels.md agree with the kernels."""

from __future__ import annotations

import re

import pytest
import torch

from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk_kernels.packing import empty
from kinfolk_kernels.planes import GROUP_WEIGHTS, LAYOUTS, unpack

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture(scope="module")
def page(repo) -> str:
    return (repo / "docs/kernels.md").read_text()


def flush(text: str) -> str:
    """The lines of a source without their indents."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_the_code_of_the_page_is_that_of_the_files_it_names(repo, page):
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```python")
    for path, text in blocks:
        source, at = flush((repo / path).read_text()), 0
        for part in re.split(r"^\.\.\.$", text, flags=re.MULTILINE):
            at = source.find(flush(part), at)
            assert at >= 0, f"{path} has no\n{part}"


def weights_of(planes, word: int, row: int, shift: int) -> list[int]:
    """Weights of a row that four bits of a stored word stand for, byte by byte."""
    words = planes.q.zero_().view(torch.uint8).view(-1, planes.q.shape[1], 4, 4)
    zero, found = unpack(planes), []
    for byte in range(4):
        words[0, word, row, byte] = 1 << shift
        ((where, weight),) = (unpack(planes) != zero).nonzero().tolist()
        assert where == row
        found.append(weight)
        words[0, word, row, byte] = 0
    return found


@pytest.mark.parametrize("row", [0, 3])
def test_the_drawing_of_packed_words_is_what_is_unpacked(page, row):
    (block,) = re.findall(r"^```packed-words\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = {}
    for line in block.splitlines():
        name, numbers = re.fullmatch(r"(\D+?)((?: +\d+)+)", line).groups()
        lines[name] = [int(number) for number in numbers.split()]
    planes = empty("Q4_0", 4, 2 * GROUP_WEIGHTS, CPU)
    planes.supers.copy_(torch.ones(2, dtype=torch.float16).view(torch.int32))
    assert lines["stored word"] == list(range(planes.q.shape[1]))
    for word, group, k in zip(lines["stored word"], lines["group"], lines["k"], strict=True):
        assert k // GROUP_WEIGHTS == group
        assert weights_of(planes, word, row, 0) == [k, k + 1, k + 2, k + 3]
        assert weights_of(planes, word, row, 4) == [k + 32, k + 33, k + 34, k + 35]


def test_the_sizes_of_packed_formats_are_those_of_the_planes(page):
    rows = re.findall(
        r"^\| (\w+) \| (–|\d)[^|]*\|.*\| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE
    )
    assert [name for name, *_ in rows] == list(LAYOUTS)
    for name, high, in_file, packed in rows:
        layout, planes = LAYOUTS[name], empty(name, 4, 1024, META)
        assert float(in_file) == 8 * layout.nbytes / layout.block, name
        assert float(packed) == 8 * planes.nbytes / (4 * 1024), name
        assert (high == "–") == (planes.high is None), name
        assert high in ("–", str(layout.bits)), name


def test_the_example_of_a_floor_is_computed_right(page):
    from kinfolk.registry import Registry
    from kinfolk.settings import load_settings

    found = re.search(
        r"output matrix of the 27B, \[(\d+), (\d+)\] in (\w+), has ([\d.]+) GB of planes\. "
        r"At ([\d.]+) TB/s that is a floor of (\d+) µs; (\d+) µs were measured with 16 rows, "
        r"so the kernel reads at (\d+) %",
        " ".join(page.split()),
    )
    rows, columns, kind, size, rate, floor, measured, share = found.groups()
    families = [f.value for f in Registry.discover(load_settings()).families.values()]
    plan = plan_synthetic(find_shape("qwen3.5-27b", families))
    (head,) = (tensor for tensor in plan.tensors if tensor.layout.name == "output.weight")
    assert (head.layout.shape, head.kind) == ((int(rows), int(columns)), kind)
    nbytes = empty(kind, int(rows), int(columns), META).nbytes
    assert f"{nbytes / 1e9:.2f}" == size
    assert round(nbytes / float(rate) / 1e6) == int(floor)
    assert round(100 * int(floor) / int(measured)) == int(share)
