"""The experts' kernels compile for every GPU we name, in the shapes of released models.

Launches without their memory, compiled in a process of their own, as this tier's interprets
kernels; it takes longer than the default tier may.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(900)]

CAPABILITIES = (86, 120)
"""sm_89 has the shared memory, the registers and the instructions of the first that these use."""
SHARED = 99 * 1024
SPILLED = 160
"""Bytes a thread."""

LAYERS = {
    "256 of 512": (256, 512, 2048, "Q4_K", ("Q4_K", "Q6_K")),
    "128 of 704": (128, 704, 2816, "Q4_K", ("Q5_0", "Q8_0")),
}
"""Experts, channels and width, formats of gate and up, and of down."""

FETCHING = (("Q5_K", 4096), ("Q6_K", 3072))
"""Formats and columns of gate and up, beside those of ``LAYERS``, where a row fetches."""

INT8_GROUPS = {
    "256 of 512 Q6_K": (("", 64), ("", 512)),
    "128 of 704 Q5_0": (("", 64), ("far, ", 64)),
}
"""Layers and rows whose groups of int8 rows are compiled: each takes seconds."""


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def stack(name, experts, rows, columns):
    """Planes of the right shape."""
    from kinfolk_kernels.packing import empty as empty_planes

    return empty_planes(name, experts * rows, columns, "meta").stacked(experts)


def shared_expert(layer):
    from kinfolk_kernels.experts.op import SharedExpert

    (channels, width), format = (layer.channels, layer.width), "Q8_0"
    gate, down = stack(format, 1, channels, width)[0], stack(format, 1, width, channels)[0]
    return SharedExpert(gate, gate, down, empty(width))


def layers():
    from kinfolk_kernels.experts.op import ExpertsArguments

    half, single, plain = torch.float16, torch.float32, torch.bfloat16
    for title, (count, channels, width, upper, lowers) in LAYERS.items():
        both = stack(upper, count, 2 * channels, width)
        gate, up = both.part(0, channels), both.part(channels, 2 * channels)
        bays = empty(count, dtype=torch.int64)
        for lower in lowers:
            down = stack(lower, count, width, channels)
            yield f"{title} {lower}", ExpertsArguments(gate, up, down, bays, "silu", 8, half)
    gate, down = (empty(8, *shape, dtype=plain) for shape in ((512, 2048), (2048, 512)))
    bays = empty(8, dtype=torch.int64)
    yield "plain bfloat16", ExpertsArguments(gate, gate, down, bays, "gelu_tanh", 8, plain)
    gate, down = empty(8, 512, 2048), empty(8, 2048, 512)
    yield "plain float32", ExpertsArguments(gate, gate, down, bays, "gelu_tanh", 8, single)


def spread(layer):
    """The layer with half of its experts in near bays, all of them in far ones, padding rows."""
    from kinfolk_kernels.experts.op import FarExperts

    rows = empty(1, dtype=torch.int32)
    return replace(layer, far=FarExperts(layer.gate, layer.up, layer.down), rows=rows)


def fetches():
    from kinfolk_kernels.fetch.op import FetchArguments
    from kinfolk_kernels.fetch.triton_backend import fetch_launch

    for count, rows in ((256, 1), (256, 16), (128, 512), (1024, 16)):
        arguments = FetchArguments(
            *(empty(bays, 2**21, dtype=torch.uint8) for bays in (count // 2, count)),
            empty(count, dtype=torch.int64),
            empty(count // 2, dtype=torch.int32),
            empty(count),
            empty(count, dtype=torch.int64),
            empty(3, dtype=torch.int64),
            empty(1, dtype=torch.int32),
        )
        ids = empty(rows, 8, dtype=torch.int64)
        yield f"{count}, {rows} rows: fetch", fetch_launch(arguments, ids)


def fetched(layer, x, choice):
    """The launches of a row that fetches; where down lies in a record is no matter here."""
    from kinfolk_kernels.experts.pair_launches import pair_launches
    from kinfolk_kernels.fetch.op import FetchArguments
    from kinfolk_kernels.fetch_experts import triton_backend as fused

    count, record = layer.count, 2**21
    near, far = (empty(bays, record, dtype=torch.uint8) for bays in (count // 2, count))
    state = (empty(count), empty(count, dtype=torch.int64), empty(3, dtype=torch.int64))
    owners = empty(count // 2, dtype=torch.int32)
    fetch = FetchArguments(near, far, layer.bay_of_expert, owners, *state, layer.rows)
    with patch.object(
        fused, "place_in_record", lambda *_: fused.PlaceInRecord(2**20, 2**21, 2**20)
    ):
        gate_up = partial(fused.fetch_gate_up, fetch=fetch)
        yield from pair_launches(x, choice, layer, empty(1, layer.width), gate_up=gate_up)


def wide_fetching():
    """The launch that fetches of the layers in ``FETCHING``."""
    from kinfolk_kernels.experts.choice import Choice
    from kinfolk_kernels.experts.op import ExpertsArguments
    from kinfolk_kernels.fetch_experts.kernel import fetch_gate_up_kernel

    for upper, width in FETCHING:
        gate, down = stack(upper, 256, 512, width), stack("Q4_K", 256, width, 512)
        bays = empty(256, dtype=torch.int64)
        layer = spread(ExpertsArguments(gate, gate, down, bays, "silu", 8, torch.float16))
        x = empty(1, width, dtype=torch.float16)
        choice = Choice(empty(1, 8, dtype=torch.int64), empty(1, 8))
        for launch in fetched(layer, x, choice):
            if launch.kernel is fetch_gate_up_kernel:
                yield f"{upper} of {width}: fetch_gate_up_kernel", launch


def landings():
    from kinfolk_kernels.land.op import LandArguments
    from kinfolk_kernels.land.triton_backend import land_launch

    for count, rows in ((256, 16), (128, 2048), (1024, 512)):
        arguments = LandArguments(
            *(empty(bays, 2**21, dtype=torch.uint8) for bays in (count, count // 2)),
            empty(count, dtype=torch.int64),
            empty(count, dtype=torch.int64),
            empty(1, dtype=torch.int32),
            count // 2,
        )
        ids = empty(rows, 8, dtype=torch.int64)
        yield f"{count}, {rows} rows: land", land_launch(arguments, ids)


def launches():
    yield from fetches()
    yield from landings()
    from kinfolk_kernels.experts.choice import Choice
    from kinfolk_kernels.experts.group_launches import group_launches
    from kinfolk_kernels.experts.int8_group_kernel import int8_group_kernel
    from kinfolk_kernels.experts.int8_group_launches import int8_group_launches
    from kinfolk_kernels.experts.pair_launches import pair_launches
    from kinfolk_kernels.experts.stacks import DENSE, format_of
    from kinfolk_kernels.fetch_experts.kernel import fetch_gate_up_kernel
    from kinfolk_kernels.route.op import RouteArguments
    from kinfolk_kernels.route.triton_backend import (
        choose,
        empty_parts,
        logits_of_many,
        route_launches,
    )

    for title, layer in layers():
        dense = format_of(layer.gate) == DENSE
        for rows in (32, 2048) if dense else (1, 4, 32, 512, 2048):
            choice = Choice(empty(rows, 8, dtype=torch.int64), empty(rows, 8))
            x = empty(rows, layer.width, dtype=layer.gate.dtype if dense else torch.float16)
            made = pair_launches if rows <= 4 else group_launches
            if rows <= 4 and layer.activation == "silu" and not dense:
                layer = replace(layer, shared=shared_expert(layer))
            kinds = [("", layer)]
            if rows != 512 and not title.endswith("Q8_0"):
                kinds.append(("far, ", spread(layer)))
            for kind, taken in kinds:
                for launch in made(x, choice, taken, empty(rows, layer.width)):
                    yield f"{title}, {kind}{rows} rows: {launch.kernel.__name__}", launch
                if kind and rows == 1:
                    first, *_ = (
                        launch
                        for launch in fetched(taken, x, choice)
                        if launch.kernel is fetch_gate_up_kernel
                    )
                    yield f"{title}: fetch_gate_up_kernel", first
        for kind, rows in INT8_GROUPS.get(title, ()):
            choice = Choice(empty(rows, 8, dtype=torch.int64), empty(rows, 8))
            x = empty(rows, layer.width, dtype=torch.float16)
            taken = spread(layer) if kind else layer
            for launch in int8_group_launches(x, choice, taken, empty(rows, layer.width)):
                if launch.kernel is int8_group_kernel:
                    part = f"{launch.constants['K']} columns"
                    yield f"{title}, {kind}{rows} rows, {part}: int8_group_kernel", launch
    yield from wide_fetching()
    logits = empty_parts(2048, 2816, 128, torch.device("meta"))
    for dtype in (torch.bfloat16, torch.float32):
        x = empty(2048, 2816, dtype=dtype)
        yield f"2048 rows of {dtype}: logits", logits_of_many(x, empty(128, 2816), logits)
    for score in ("softmax", "sigmoid"):
        ids, weights = empty(4, 8, dtype=torch.int64), empty(4, 8)
        extras = None if score == "softmax" else empty(256)
        arguments = RouteArguments(empty(256, 8), score, 8, torch.float16, extras, 2.5, extras)
        yield f"{score}: choose_kernel", choose(arguments, empty(8, 4, 256), ids, weights)
        for rows, experts, width in ((1, 256, 2048), (16, 256, 2048), (16, 128, 2816)):
            ids, weights = empty(rows, 8, dtype=torch.int64), empty(rows, 8)
            x = empty(rows, width, dtype=torch.bfloat16)
            extras = None if score == "softmax" else empty(experts)
            router = empty(experts, width)
            arguments = RouteArguments(router, score, 8, torch.float16, extras, 2.5, extras)
            for launch in route_launches(arguments, x, ids, weights):
                name = launch.kernel.__name__
                yield f"{score}, {rows} of {width}: {name}", launch
    from kinfolk_kernels.experts.shared_launches import add_shared

    for shared_gate in (None, empty(2816)):
        narrow = empty(4, 2816, dtype=torch.float16)
        yield (
            f"{shared_gate is not None}: add",
            add_shared(empty(4, 2816), narrow, narrow, shared_gate),
        )


ARITHMETIC = {
    "loads of 16 bytes": r"LDG\S*\.128",
    "sums": "FADD",
    "products": "FMUL",
    "products with a sum": "FFMA",
    "int8 products": "IDP",
    "matrix products": "HG?MMA",
}
"""Instructions by what they do."""


def does(code):
    """How often machine code has each of ``ARITHMETIC``."""
    from kinfolk_kernels.aot import TOOLS

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [TOOLS / "nvdisasm", "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {what: len(re.findall(rf"\s{name}\b", text)) for what, name in ARITHMETIC.items()}


def main(capability: int) -> None:
    """Compile everything once and write what it takes, as JSON."""
    from kinfolk_kernels.aot import compiled_for, usage_of

    found, seen = {}, set()
    for name, launch in launches():
        key = repr((launch.kernel.__name__, launch.constants, launch.options))
        types = repr([(n, getattr(a, "dtype", a)) for n, a in launch.arguments.items()])
        if (key, types) in seen:
            continue
        seen.add((key, types))
        compiled = compiled_for(launch, capability)
        usage = usage_of(compiled.asm["cubin"], compiled.metadata.shared)
        numbers = [usage.shared, usage.registers, usage.spilled, usage.loop_spills]
        found[name] = [*numbers, does(compiled.asm["cubin"])]
    sys.stdout.write(json.dumps(found))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_everything_compiles_into_a_small_shared_memory(capability):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__, str(capability)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kernels = {name.split(": ")[-1] for name in found}
    assert len(kernels) == 19
    # The same numbers come from near and from far bays, read as wide, so an expert's bits too.
    far = {name: use[4] for name, use in found.items() if "far, " in name}
    near = {name: found[name.replace("far, ", "")][4] for name in far}
    assert {name: (near[name], far[name]) for name in far if far[name] != near[name]} == {}
    assert sum(use["loads of 16 bytes"] > 0 for use in far.values()) >= 8
    # Product and sum of a score are rounded apart, as the reference does.
    scores = {name: use[4] for name, use in found.items() if name.endswith(": fetch")}
    assert len(scores) == 4
    assert all(use["products"] and use["sums"] for use in scores.values())
    assert not any(use["products with a sum"] for use in scores.values())
    fetching = {name: use[3] for name, use in found.items() if "fetch_gate_up" in name}
    assert len(fetching) == 4
    assert max(fetching.values()) <= 2, fetching
    too_large = {name: use for name, use in found.items() if use[0] > SHARED or use[2] > SPILLED}
    assert too_large == {}


if __name__ == "__main__":
    main(int(sys.argv[1]))
