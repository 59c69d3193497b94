"""A drafter made of the core's building blocks: one layer of attention over features.

Its weights are random, so it is seldom right; it shows that a drafter's layers run in steps and
drafts as a family's do, and where its state is not what it should be, it proposes something else.
"""

from __future__ import annotations

import gguf
import numpy as np

from kinfolk.config import Rope
from kinfolk.descriptors import DrafterSpec
from kinfolk.draft_api import DraftPlan, Proposals, TinyDrafter
from kinfolk.gguf.file import GGUFFile
from kinfolk.loader import Provided
from kinfolk.nn.attention import Attention
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.nn.step import Step
from kinfolk.plans import Paged, Section, WeightPlan, WeightSpec

ARCHITECTURE = "attending-draft"
HEADS, DIM, COLUMNS = 2, 32, 3
SHARPNESS = 6
"""Random queries are so large that a few keys decide."""

SIZES = {"q": HEADS * DIM, "k": DIM, "v": DIM}


def write(path, width, *, depth=3, window=0, seed=0):
    """Write a drafter's file for a target whose rows have ``width`` numbers."""
    generator = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_uint32(f"{ARCHITECTURE}.width", width)
    writer.add_uint32(f"{ARCHITECTURE}.depth", depth)
    writer.add_uint32(f"{ARCHITECTURE}.window", window)
    for name, shape in matrices(width).items():
        numbers = generator.standard_normal(shape) / shape[1] ** 0.5
        numbers *= SHARPNESS if name == "q" else 1
        writer.add_tensor(f"{name}.weight", numbers.astype(np.float32))
    writer.add_tensor("norm.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def matrices(width):
    """The shapes of the matrices, by name."""
    shapes = {"fc": (width, 2 * width), "output": (width, HEADS * DIM)}
    return shapes | {name: (rows, width) for name, rows in SIZES.items()}


def spec():
    where = "attending_drafter"
    made = DrafterSpec(
        "attending",
        architectures=(ARCHITECTURE,),
        prepare=f"{where}:prepare",
        build=f"{where}:AttendingDrafter",
        tiny=TinyDrafter(write=f"{where}:write_tiny"),
    )
    return Provided(made, "tests", "the tests")


def prepare(file, facts):
    meta = file.metadata
    width, depth, window = (meta.integer(meta.arch_key(n)) for n in ("width", "depth", "window"))
    weights = [WeightSpec(f"{name}.weight", shape) for name, shape in matrices(width).items()]
    sections = (Section("k", 1, DIM, facts.codec), Section("v", 1, DIM, facts.codec))
    return DraftPlan(
        WeightPlan((*weights, WeightSpec("norm.weight", (width,), "vector"))),
        state=(Paged(sections, window or None),),
        features=(0,),
        final=True,
        block=depth + 1,
        depth=depth,
        columns=COLUMNS,
        fill=3,
        width=width,
        config=facts.first_layer,
    )


class AttendingDrafter:
    def __init__(self, plan, weights, context, target):
        self.target, self.block = target, plan.block
        self.fuse = Linear(context, weights["fc.weight"])
        self.norm = RMSNorm(context, weights.tensor("norm.weight"), 1e-6)
        rope = RotaryEmbedding(context, Rope(dims=DIM, base=10000.0))
        self.attention = Attention(
            context,
            plan.config,
            heads=HEADS,
            kv_heads=1,
            dim=DIM,
            **{name: weights[f"{name}.weight"] for name in (*SIZES, "output")},
            rope=rope,
        )

    def extend(self, features, batch, view):
        fused = self.fuse(features.to(self.norm.dtype))
        self.attention(self.norm(fused.float()), Step(batch, view))
        return ()

    def commit(self, trace, kept, view):
        """Keys and values are the engine's."""

    def draft(self, block, view):
        x = self.target.embed(block.batch.tokens)
        mixed, _ = self.attention(self.norm(x), Step(block.batch, view))
        hidden = self.target.norm(mixed.float()).view(block.lanes, self.block, -1)
        logits = self.target.logits(hidden[:, 1:].flatten(0, 1)).log_softmax(1)
        best = logits.topk(COLUMNS, 1)
        shape = (block.lanes, self.block - 1, COLUMNS)
        return Proposals(best.indices.view(shape), best.values.view(shape))


def write_tiny(target, path):
    """The tiny drafter of the conformance kit's checks."""
    with GGUFFile.open(target) as file:
        meta = file.metadata
        write(path, meta.integer(meta.arch_key("embedding_length")))
