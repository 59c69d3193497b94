"""``--kvflash-policy``: who scores chunks where no policy of a plugin does, and what it takes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kinfolk.engine.buckets import MIXED_ROWS
from kinfolk.errors import SettingsError, UnsupportedModelError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.metadata import Metadata
from kinfolk.ops.binding import Ops
from kinfolk.plans import PoolRule, ScoredLayers, Section, StatePlan
from kinfolk.quant.formats import QuantFormats
from kinfolk.settings import Settings
from kinfolk.state.cache_salt import model_hash
from kinfolk.state.geometry import chunks_for
from kinfolk.state.score_layers import digest_chunk_bytes, scored_layers, scoring_layers
from kinfolk.torch_dtypes import TORCH_DTYPES
from kinfolk_kernels.chunk_digest.op import CHUNK_DIGEST, ChunkDigestArguments
from kinfolk_kernels.chunk_scores.op import CHUNK_SCORES, ChunkScoresArguments
from kinfolk_kernels.stored_kind import StoredKind
from kinfolk_kernels.write_queries.op import RING_ROWS

log = logging.getLogger(__name__)

SCORE_BYTES = 4
"""Of an intermediate number of a score, which is float32."""


@dataclass(frozen=True, slots=True)
class CoreScorer:
    """Scores by the attention of some layers of a model (``qk``), or by exact keys of all of them
    (``oracle``).

    ``count``: how many layers, ``None`` = as many as the memory of the pool suggests. ``heads``:
    query heads of a layer at most, in ``query_dtype``. ``drafts``: whether rows are drafted, whose
    queries wait for the commit of their step. ``suspended``: sequences that wait with their queries
    on the device.
    """

    plan: StatePlan
    count: int | None
    heads: int
    query_dtype: torch.dtype
    drafts: bool
    suspended: int = 0
    name: str = "qk"
    previews: bool = True

    def scored(self, budget: int, context: int) -> ScoredLayers:
        """The layers beside a ``budget`` of chunks on the device for a ``context``, and their
        memory. Raises :class:`SettingsError` if there are not as many layers as ``count``."""
        chunks = chunks_for(context)
        layers = scored_layers(self.plan, budget, chunks, self.count)
        keys = self.plan.paged(layers[0]).section("k")
        row = len(layers) * self.heads * keys.dim * self.query_dtype.itemsize
        scores = chunks * RING_ROWS * len(layers) * self.heads * SCORE_BYTES
        return ScoredLayers(
            layers,
            chunk_bytes=len(layers) * digest_chunk_bytes(keys),
            slot_bytes=RING_ROWS * row,
            work_bytes=scores + (MIXED_ROWS[-1] * row if self.drafts else 0),
            suspended=self.suspended,
            exact=self.name == "oracle",
        )


@dataclass(frozen=True, slots=True)
class ReadingScorer:
    """Scores by the attention of another model, which reads the sequence along (``drafter``). That
    one knows the last tokens of a prompt before this one has read them. ``file_hash``: that of its
    file (:func:`kinfolk.state.cache_salt.model_hash`)."""

    file_hash: str = ""
    name: str = "drafter"
    previews: bool = False

    def scored(self, budget: int, context: int) -> None:
        """No layer of this model scores."""
        return


ChooseScorer = Callable[[PoolRule], CoreScorer | ReadingScorer | None]
"""The core's scorer of a model whose full attention has this rule; ``None`` = ``lru``."""


def no_scorer(rule: PoolRule) -> None:
    """Sink and recency, whatever the rule."""
    return


def choose_scorer(
    settings: Settings,
    trunk: StatePlan,
    metadata: Metadata,
    ops: Ops,
    device: torch.device,
    dtype: torch.dtype,
    drafts: bool,
    formats: QuantFormats,
    rule: PoolRule,
) -> CoreScorer | ReadingScorer | None:
    """What the settings ask for; ``trunk`` is the state of a model without its drafter's.

    If the model cannot be scored in this way, that is an error (:class:`SettingsError`) if it was
    asked for; by default, the log says so and the first and the last chunks are kept.
    """
    policy = settings.kvflash_policy
    if policy != "qk" and settings.kvflash_layers is not None:
        raise SettingsError(f"--kvflash-layers is for --kvflash-policy qk, not {policy}")
    if policy == "lru":
        return None
    if policy == "drafter":
        return ReadingScorer(_file_hash(settings, formats))
    try:
        keys = _keys(trunk, rule)
        _require_ops(ops, keys, device, dtype)
    except UnsupportedModelError as error:
        if settings.asked("kvflash_policy") or settings.asked("kvflash_layers"):
            raise SettingsError(
                f"--kvflash-policy {policy}: {error}; use --kvflash-policy lru",
                field="kvflash_policy",
            ) from None
        log.warning("--kvflash-policy is lru, the first and the last chunks are kept: %s", error)
        return None
    return CoreScorer(
        trunk,
        len(scoring_layers(trunk)) if policy == "oracle" else settings.kvflash_layers,
        _query_heads(metadata, trunk),
        TORCH_DTYPES.get(keys.codec.format, dtype),
        drafts,
        suspended=settings.slots if settings.preempt else 0,
        name=policy,
    )


def _file_hash(settings: Settings, formats: QuantFormats) -> str:
    path = settings.kvflash_drafter
    if path is None:
        return ""
    with GGUFFile.open(path, formats.tensor_types()) as file:
        return model_hash(file)


def _keys(trunk: StatePlan, rule: PoolRule) -> Section:
    """The keys that are compressed. Raises :class:`UnsupportedModelError` if there are none."""
    layers = scoring_layers(trunk)
    if not layers:
        raise UnsupportedModelError("no layer of the model keeps the keys of all positions")
    if rule.sink < 1:
        raise UnsupportedModelError(
            "keys are compressed by what the first chunk of a sequence holds, and the hook "
            "map_slots lets that leave the device"
        )
    return trunk.paged(layers[0]).section("k")


def _require_ops(ops: Ops, keys: Section, device: torch.device, dtype: torch.dtype) -> None:
    """Raises :class:`UnsupportedModelError` if the keys cannot be compressed, or the host would
    wait for it."""
    kind = StoredKind.named(keys.heads, keys.dim, keys.codec.format)
    query_dtype = kind.dtype or dtype
    try:
        ops.bind(CHUNK_DIGEST, ChunkDigestArguments(kind, device))
        ops.bind(
            CHUNK_SCORES,
            ChunkScoresArguments(keys.heads, keys.heads, keys.dim, 1.0, False, query_dtype, device),
        )
    except ValueError as error:
        raise UnsupportedModelError(str(error)) from None
    waiting = ops.uncapturable() if device.type == "cuda" else {}
    if waiting:
        reasons = "; ".join(f"{op}: {why}" for op, why in waiting.items())
        raise UnsupportedModelError(f"keys of {keys.dim} dimensions: {reasons}")


def _query_heads(metadata: Metadata, trunk: StatePlan) -> int:
    """Query heads of the layers that may be scored by the file, the most if they differ; those of
    keys if it says nothing."""
    layers, key = scoring_layers(trunk), metadata.arch_key("attention.head_count")
    if key not in metadata:
        return trunk.paged(layers[0]).section("k").heads
    if not metadata.value(key).is_array:
        return metadata.integer(key)
    heads = metadata.integers(key)
    return int(max(heads[layer] for layer in layers))
