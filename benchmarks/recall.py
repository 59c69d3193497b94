"""Which scores of chunks find the one that a text goes back to: the bundled model, on the CPU.

    python benchmarks/recall.py [--each N] [--depths .1,.5,.9] [--seed N] [--json FILE]

A text of 63 chunks of click's source holds one needle, and its end goes back to that: token ids of
no meaning whose first half is repeated, a function that is begun again, or a constant whose name is
assigned again. All keys are there while the text is read. Then every scorer scores the chunks by
the queries of the last rows. A needle is found if its chunk is among the best two, where the first
chunk and the last two do not count, as they are always kept. Bytes are those of a layer and
position of a model with 4 key heads of 256 dimensions.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import files
from itertools import takewhile
from pathlib import Path

import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.descriptors import OpBackend
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.score import logits
from kinfolk.engine.text import open_text
from kinfolk.loader import Provided
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.text.tokenizer import Tokenizer
from kinfolk_kernels.chunk_digest.op import ChunkDigestArguments, KeyDigest, chunk_digest
from kinfolk_kernels.chunk_scores.op import ChunkScoresArguments, chunk_scores
from kinfolk_kernels.codecs import Stored, numbers, rotate
from kinfolk_kernels.paged_attention.epilogue import Epilogue, Mixed
from kinfolk_kernels.paged_attention.op import GatedAttentionArguments
from kinfolk_kernels.paged_attention.torch_backend import gated_attention
from kinfolk_kernels.rows import CHUNK_POSITIONS, Rows, Table
from kinfolk_kernels.stored_kind import StoredKind

say = sys.stdout.write
CPU = torch.device("cpu")

CHUNKS, QUERY_ROWS, CHOSEN = 63, 8, 2
SINK, TAIL = 1, 2
ANSWER = 14
"""Most tokens of a needle behind what the end of a text repeats."""

KEY_HEADS, DIM = 4, 256
"""Of the model whose bytes are counted."""


@dataclass(frozen=True)
class Layer:
    """What attention had at the end of a text: queries [rows, heads, dim] of the last rows, keys
    [chunks, key heads, 64, dim] of whole chunks, and the factor of their products."""

    queries: torch.Tensor
    keys: torch.Tensor
    scale: float


RECORDED: list[Layer] = []
"""One entry for each call of attention. A back end is a function, so it has no other place."""

BACKEND = OpBackend("gated_attention", "recorded", f"{__name__}:recorded", priority=1000)


def recorded(
    arguments: GatedAttentionArguments,
    q: torch.Tensor,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
    table: Table,
    epilogue: Epilogue,
) -> Mixed:
    """``gated_attention``, which also notes queries and keys."""
    blocks = table.blocks[0, : (int(rows.positions[-1]) + 1) // CHUNK_POSITIONS].long()
    keys = numbers(pools[0], lambda plane: plane[blocks]).float()
    RECORDED.append(Layer(q[-QUERY_ROWS:].float(), keys, arguments.scale))
    return gated_attention(arguments, q, pools, arenas, rows, table, epilogue)


# -- scorers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scorer:
    """``scores(layers) -> [chunks]``, higher = keep; ``bytes`` for each layer and position."""

    name: str
    bytes: float
    scores: Callable[[Sequence[Layer]], torch.Tensor]


def by_mass(layers: Sequence[Layer], estimate: Callable[[Layer], torch.Tensor]) -> torch.Tensor:
    """The largest share of attention that any row and head of a layer gives to the chunk, by
    estimated products [rows, heads, chunks, keys]."""
    most = []
    for layer in layers:
        estimated = estimate(layer) * layer.scale
        shares = estimated.flatten(2).softmax(-1).view(estimated.shape).sum(-1)
        most.append(shares.flatten(0, 1).amax(0))
    return torch.stack(most).amax(0)


def products(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """queries [rows, heads, dim], keys [chunks, key heads, n, dim] -> [rows, heads, chunks, n]."""
    repeated = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    return torch.einsum("rhd,chnd->rhcn", queries, repeated)


def exact(layer: Layer) -> torch.Tensor:
    return products(layer.queries, layer.keys)


def quantised(bits: int, centre: str, rotated: bool = True) -> Callable[[Layer], torch.Tensor]:
    """Keys less ``centre``, rotated, in ``bits`` a number and a scale a vector."""

    def estimate(layer: Layer) -> torch.Tensor:
        keys, added = layer.keys, torch.zeros(())
        if centre == "first":
            keys = keys - keys[:1].mean(2, keepdim=True)
        elif centre == "late":
            keys = keys - keys[:1, :, CHUNK_POSITIONS // 2 :].mean(2, keepdim=True)
        elif centre == "all":
            keys = keys - keys.mean((0, 2), keepdim=True)
        elif centre == "own":
            mean = keys.mean(2, keepdim=True)
            keys, added = keys - mean, products(layer.queries, mean)
        queries = layer.queries
        if rotated:
            keys, queries = rotate(keys), rotate(queries)
        return products(queries, rounded(keys, bits)) + added

    return estimate


STEPS = {1: 1.596, 2: 0.996, 3: 0.586, 4: 0.335}
"""The best step of evenly spaced levels for normal numbers, in units of their deviation."""


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    half = 2 ** (bits - 1)
    step = STEPS[bits] * x.square().mean(-1, keepdim=True).sqrt()
    level = (x / step).floor().clamp(-half, half - 1) + 0.5
    return level * (x * level).sum(-1, keepdim=True) / level.square().sum(-1, keepdim=True)


def by_ops(layers: Sequence[Layer]) -> torch.Tensor:
    """The scores of ``chunk_digest`` and ``chunk_scores``."""
    best = []
    for layer in layers:
        chunks, kv_heads, _, dim = layer.keys.shape
        index = torch.arange(chunks).int()
        digest = KeyDigest.empty((chunks, 1, kv_heads), dim, CPU)
        compressing = ChunkDigestArguments(StoredKind.of(layer.keys), CPU)
        chunk_digest(compressing, layer.keys, index, 0 * index, index, digest.layer(0))
        heads = layer.queries.shape[1]
        arguments = ChunkScoresArguments(
            heads, kv_heads, dim, layer.scale, False, torch.float32, CPU
        )
        best.append(chunk_scores(arguments, layer.queries[:, None], digest, index))
    return torch.stack(best).amax(0)


def means(count: int) -> Callable[[Layer], torch.Tensor]:
    """``count`` neighbouring keys as their mean."""
    return lambda layer: products(layer.queries, layer.keys.unflatten(2, (-1, count)).mean(3))


def bounds(count: int) -> Callable[[Layer], torch.Tensor]:
    """The bound of Quest (arXiv 2406.10774): the largest product that a key between the least and
    the largest numbers of ``count`` neighbours can have."""

    def estimate(layer: Layer) -> torch.Tensor:
        groups = layer.keys.unflatten(2, (-1, count))
        positive, negative = layer.queries.clamp_min(0), layer.queries.clamp_max(0)
        return products(positive, groups.amax(3)) + products(negative, groups.amin(3))

    return estimate


def cosine_of_means(layers: Sequence[Layer]) -> torch.Tensor:
    """The last row's cosine with the mean key of a chunk: the best head, averaged over layers."""
    cosines = []
    for layer in layers:
        queries = torch.nn.functional.normalize(layer.queries[-1:], dim=-1)
        keys = torch.nn.functional.normalize(layer.keys.mean(2, keepdim=True), dim=-1)
        cosines.append(products(queries, keys)[0, :, :, 0].amax(0))
    return torch.stack(cosines).mean(0)


def recency(layers: Sequence[Layer]) -> torch.Tensor:
    return torch.arange(len(layers[0].keys)).float()


def coded_bytes(bits: int) -> float:
    return KEY_HEADS * (DIM * bits / 8 + 2)


def of_mass(name: str, size: float, estimate: Callable[[Layer], torch.Tensor]) -> Scorer:
    return Scorer(name, size, lambda layers: by_mass(layers, estimate))


VECTOR = KEY_HEADS * DIM * 2
SCORERS = (
    of_mass("exact keys", VECTOR, exact),
    of_mass("4 bits, centred on the first chunk", coded_bytes(4), quantised(4, "first")),
    of_mass("3 bits, centred on the first chunk", coded_bytes(3), quantised(3, "first")),
    Scorer("2 bits: chunk_digest, chunk_scores", coded_bytes(2), by_ops),
    of_mass("2 bits, centred on its last 32 keys", coded_bytes(2), quantised(2, "late")),
    of_mass("2 bits, centred on all keys", coded_bytes(2), quantised(2, "all")),
    of_mass("2 bits, centred on the chunk", coded_bytes(2) + VECTOR / 64, quantised(2, "own")),
    of_mass("2 bits, not centred", coded_bytes(2), quantised(2, "")),
    of_mass("2 bits, not rotated", coded_bytes(2), quantised(2, "first", rotated=False)),
    of_mass("1 bit, centred on the first chunk", coded_bytes(1), quantised(1, "first")),
    of_mass("1 bit, centred on its last 32 keys", coded_bytes(1), quantised(1, "late")),
    of_mass("1 bit, centred on all keys", coded_bytes(1), quantised(1, "all")),
    of_mass("least and largest of 4", 2 * VECTOR / 4, bounds(4)),
    of_mass("least and largest of 16", 2 * VECTOR / 16, bounds(16)),
    of_mass("least and largest of 64", 2 * VECTOR / 64, bounds(64)),
    of_mass("means of 4", VECTOR / 4, means(4)),
    of_mass("means of 16", VECTOR / 16, means(16)),
    Scorer("cosine of means of 64", VECTOR / 64, cosine_of_means),
    Scorer("lru", 0, recency),
)


# -- texts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """``tokens`` with a needle in ``chunk``, whose first tokens their end repeats; ``answer`` are
    those that follow in the needle."""

    kind: str
    chunk: int
    tokens: list[int] = field(repr=False)
    answer: list[int] = field(repr=False)


def texts(
    tokenizer: Tokenizer,
    vocabulary: int,
    depths: Sequence[float],
    each: int,
    seed: int,
    most: int | None = None,
) -> Iterator[Text]:
    """``each`` texts of every kind and depth. ``most``: tokens of click's source that are
    enough."""
    chance = random.Random(seed)
    modules = sorted(str(file.locate()) for file in files("click") or () if file.suffix == ".py")
    source: list[int] = []
    for name in modules:
        if most is None or len(source) < most:
            source += tokenizer.encode(Path(name).read_text())
    for kind in KINDS:
        for depth in depths:
            for _ in range(each):
                needle, repeated = KINDS[kind](tokenizer, vocabulary, chance)
                at = chance.randrange(len(source) - CHUNKS * CHUNK_POSITIONS)
                tokens = source[at : at + CHUNKS * CHUNK_POSITIONS]
                chunk = SINK + round(depth * (CHUNKS - SINK - TAIL - 1))
                start = chunk * CHUNK_POSITIONS + chance.randrange(
                    CHUNK_POSITIONS - len(needle) + 1
                )
                tokens[start : start + len(needle)] = needle
                answer = needle[repeated : repeated + ANSWER]
                yield Text(kind, chunk, tokens + needle[:repeated], answer)


def meaningless(
    tokenizer: Tokenizer, vocabulary: int, chance: random.Random
) -> tuple[list[int], int]:
    return [chance.randrange(256, vocabulary - 256) for _ in range(24)], 12


def function(tokenizer: Tokenizer, vocabulary: int, chance: random.Random) -> tuple[list[int], int]:
    name, first, second = (word(chance) for _ in range(3))
    begun = f"\n\ndef {name}({first}, {second}):\n    "
    body = f"{second} = {first} % {chance.randrange(100, 999)}\n    return {second}\n"
    return begun_needle(tokenizer, begun, body)


def constant(tokenizer: Tokenizer, vocabulary: int, chance: random.Random) -> tuple[list[int], int]:
    name = f"{word(chance)}_{word(chance)}".upper()
    return begun_needle(tokenizer, f'\n{name} = "', f'{word(chance)}{word(chance)}"\n')


def begun_needle(tokenizer: Tokenizer, begun: str, rest: str) -> tuple[list[int], int]:
    """The tokens of a needle, and how many of them ``begun`` has too: its last token may be another
    one where the text ends there."""
    needle = tokenizer.encode(begun + rest)[:CHUNK_POSITIONS]
    both = zip(needle, tokenizer.encode(begun), strict=False)
    return needle, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


def word(chance: random.Random) -> str:
    return "".join(chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(3))


KINDS = {"ids": meaningless, "function": function, "constant": constant}


# -- the study -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recall:
    """How many needles of each kind a scorer found among its best chunks, and the share of
    attention that exact keys give to these, relative to the best choice, averaged over texts."""

    scorer: str
    bytes: float
    found: dict[str, int]
    total: int
    share: float


def best(scores: torch.Tensor) -> torch.Tensor:
    """The chunks with the largest scores, without those that are kept anyway; of equal ones the
    first."""
    others = scores[SINK : len(scores) - TAIL]
    return SINK + others.argsort(descending=True, stable=True)[:CHOSEN]


def layers_at_end(loaded: LoadedModel, tokens: list[int]) -> list[Layer]:
    """Queries and keys of every layer with attention, when all tokens have been read."""
    RECORDED.clear()
    calls = 0
    for _ in logits(loaded, tokens, chunk=1024):
        calls = calls or len(RECORDED)
    return RECORDED[-calls:]


def study(loaded: LoadedModel, cases: Sequence[Text]) -> Iterator[Recall]:
    found = {scorer.name: dict.fromkeys(KINDS, 0) for scorer in SCORERS}
    shares = dict.fromkeys(found, 0.0)
    for number, text in enumerate(cases):
        layers = layers_at_end(loaded, text.tokens)
        right = by_mass(layers, exact)
        for scorer in SCORERS:
            chosen = best(scorer.scores(layers))
            found[scorer.name][text.kind] += text.chunk in chosen.tolist()
            shares[scorer.name] += float(right[chosen].sum() / right[best(right)].sum())
        sys.stderr.write(f"\r{number + 1} of {len(cases)}")
    sys.stderr.write("\n")
    for scorer in SCORERS:
        share = shares[scorer.name] / len(cases)
        yield Recall(scorer.name, scorer.bytes, found[scorer.name], len(cases), share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=2, help="texts of every kind and depth")
    parser.add_argument("--depths", default=".1,.5,.9")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    depths = [float(depth) for depth in options.depths.split(",")]
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    path = registry.bundled_model()
    if path is None:
        raise SystemExit("no installed family ships a model")
    recording = Provided(BACKEND, "recall", "benchmarks/recall.py")
    registry = replace(registry, op_backends=(*registry.op_backends, recording))
    length = (CHUNKS + 1) * CHUNK_POSITIONS
    loaded = load_model(
        path, load_settings(device="cpu", dtype="f32", slots=1, context=length), registry
    )
    tokenizer, _, _ = open_text(path, load_settings(), registry)
    cases = list(texts(tokenizer, loaded.config.vocabulary, depths, options.each, options.seed))
    recalls = list(study(loaded, cases))
    for recall in recalls:
        say(line(recall))
    if options.json:
        options.json.write_text(json.dumps([asdict(recall) for recall in recalls], indent=1) + "\n")


def line(recall: Recall) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in recall.found.items())
    return (
        f"{recall.scorer:36} {recall.bytes:7.0f} bytes, "
        f"{sum(recall.found.values()):3} of {recall.total}: {kinds}; share {recall.share:.3f}\n"
    )


if __name__ == "__main__":
    main()
