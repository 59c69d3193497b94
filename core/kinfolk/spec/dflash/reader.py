"""Reads the configuration of a DFlash drafter from keys and tensors of its file. Torch-free.

Sizes are those of the tensors: keys of published files contradict them. What a file does not state
has the meaning that the authors' own implementation gives it.
"""

from __future__ import annotations

import logging
from typing import Final

from kinfolk.config import MOST_LAYERS, Activation, Rope
from kinfolk.draft_api import MAX_PROPOSED
from kinfolk.errors import ModelFormatError
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.ranges import MAX_INT32
from kinfolk.nn.rope_metadata import read_rope
from kinfolk.spec.dflash.config import (
    BlockLayer,
    Convolution,
    DFlashConfig,
    GateKind,
    Selector,
)
from kinfolk.spec.dflash.layouts import (
    DRAFT_IDS,
    EMBEDDING_TENSOR,
    FC,
    FEATURE_NORMS,
    HEAD_TENSOR,
    LAYOUT_A,
    ROPE_DIVISORS,
    SELECTOR,
    SELECTOR_HIDDEN,
    FileLayout,
    layout_of,
    refuse_other_drafters,
)
from kinfolk.spec.reduced_head import head_tokens

log = logging.getLogger(__name__)

DEFAULT_BLOCK: Final = 16
DEFAULT_EPS: Final = 1e-6
_SUSPECT_BASE: Final = 1e6
"""Converters of layout A have written this base of the rotary embedding whatever the drafter's."""

_MOST_SCALE: Final = 1e6
_ACTIVATIONS: Final[dict[str, Activation]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def read_config(meta: Metadata, inventory: Inventory) -> DFlashConfig:
    """The configuration of the drafter in a file of either layout.

    Raises :class:`ModelFormatError` or :class:`UnsupportedModelError`, which name the file, and the
    key or tensor with its numbers.
    """
    layout = layout_of(meta, inventory)
    refuse_other_drafters(inventory, layout)
    reader = _Reader(meta, inventory, layout)
    return reader.config()


class _Reader:
    """Reads one file; a method for each part of the configuration."""

    def __init__(self, meta: Metadata, inventory: Inventory, layout: FileLayout) -> None:
        self.meta, self.inventory, self.layout = meta, inventory, layout
        self.fc = self.tensor(FC)
        self.width = self.fc.shape[0]
        self.count = meta.integer(meta.arch_key("block_count"), minimum=1, maximum=MOST_LAYERS)

    def config(self) -> DFlashConfig:
        meta, width = self.meta, self.width
        head_dim = self.tensor("blk.0.attn_q_norm.weight").shape[0]
        heads = self.heads("blk.0.attn_q.weight", head_dim)
        self.compare("embedding_length", width, FC)
        self.compare("attention.head_count", heads, "blk.0.attn_q.weight")
        vocabulary = self.vocabulary()
        return DFlashConfig(
            architecture=meta.architecture,
            name=meta.string("general.name", default=meta.architecture),
            layers=self.layers(),
            width=width,
            heads=heads,
            kv_heads=self.heads("blk.0.attn_k.weight", head_dim),
            head_dim=head_dim,
            feed_forward=self.tensor("blk.0.ffn_gate.weight").shape[0],
            norm_eps=self.number(
                "attention.layer_norm_rms_epsilon", default=DEFAULT_EPS, maximum=1.0
            ),
            rope=self.rope(head_dim),
            rope_divisors=self.has(ROPE_DIVISORS),
            block=self.own_integer("block_size", DEFAULT_BLOCK, 2, MAX_PROPOSED + 1),
            mask_token=self.mask_token(vocabulary),
            feature_layers=self.feature_layers(),
            feature_count=self.feature_count(),
            vocabulary=vocabulary,
            own_embedding=self.has(EMBEDDING_TENSOR),
            own_head=self.has(HEAD_TENSOR),
            draft_ids=self.draft_ids(vocabulary),
            embedding_scale=self.optional("embedding_scale"),
            logit_scale=self.number("logit_scale", default=1.0),
            softcap=self.optional("final_logit_softcapping"),
            attention_scale=self.optional("attention.scale"),
            value_scale=self.number("attention.value_scale", default=1.0),
            activation=self.activation(),
            gate=self.gate(heads, head_dim),
            context_norm=self.context_norm(),
            feature_norms=self.has_feature_norms(),
            convolution=self.convolution(),
            selector=self.selector(),
        )

    # -- tensors ------------------------------------------------------------------------------

    def tensor(self, name: str) -> TensorInfo:
        return self.layout.tensor(self.inventory, name)

    def has(self, name: str) -> bool:
        return self.layout.find(self.inventory, name) is not None

    def heads(self, name: str, head_dim: int) -> int:
        info = self.tensor(name)
        if info.shape[0] % head_dim:
            raise self.misshapen(
                info, f"has {info.shape[0]} rows, no multiple of the {head_dim} numbers of a head"
            )
        return info.shape[0] // head_dim

    def misshapen(self, info: TensorInfo, message: str) -> ModelFormatError:
        return ModelFormatError(f"tensor {info.name!r} {message}", path=info.path, key=info.name)

    # -- features -----------------------------------------------------------------------------

    def feature_count(self) -> int:
        inputs = self.fc.shape[-1]
        if inputs % self.width:
            raise self.misshapen(
                self.fc,
                f"takes {inputs} numbers, no multiple of the {self.width} of a row of the model",
            )
        return inputs // self.width

    def feature_layers(self) -> tuple[int, ...]:
        key = self.meta.arch_key(self.layout.feature_layers)
        if key not in self.meta and self.layout is LAYOUT_A:
            return ()
        stated = self.meta.integers(key).tolist()
        count = self.feature_count()
        if len(stated) != count:
            raise self.meta.fail(
                f"key {key!r} lists {len(stated)} layers, but tensor {self.fc.name!r} takes "
                f"{count}·{self.width} numbers",
                key,
            )
        first = int(self.layout.counts_inputs)
        wrong = [layer for layer in stated if layer < first or stated.count(layer) > 1]
        if wrong:
            raise self.meta.fail(
                f"key {key!r} is {stated}, expected different layers from {first} on", key
            )
        return tuple(int(layer) - first for layer in stated)

    def has_feature_norms(self) -> bool:
        if not self.layout.feature_norms:
            return self.has(FEATURE_NORMS)
        names = [self.layout.feature_norms.format(k) for k in range(self.feature_count())]
        there = [name in self.inventory for name in names]
        if any(there) and not all(there):
            missing = names[there.index(False)]
            raise ModelFormatError(
                f"tensor {missing!r} is missing, while others of the {len(names)} norms of "
                "features are there",
                path=self.inventory.path,
                key=missing,
            )
        return all(there)

    def context_norm(self) -> bool:
        """Without a key, drafters that norm the features of each layer norm the sum as well."""
        key = self.meta.arch_key("dflash.context_kv_layer_norm")
        if self.layout is not LAYOUT_A:
            key = self.meta.arch_key("context_kv_layer_norm")
        if key not in self.meta:
            return self.has_feature_norms()
        value = self.meta.value(key)
        is_flag = not value.is_array and value.type == "bool"
        return self.meta.boolean(key) if is_flag else bool(self.meta.integer(key, allowed=(0, 1)))

    # -- layers -------------------------------------------------------------------------------

    def layers(self) -> tuple[BlockLayer, ...]:
        windows = self.windows()
        key = self.meta.arch_key("attention.causal")
        if key in self.meta:
            causal = self.meta.per_layer_flags(key, self.count)
        elif self.meta.arch_key("decoder_arch") in self.meta:
            # Drafters of files with this key are decoders in everything.
            causal = (True,) * self.count
        else:
            causal = tuple(window is not None for window in windows)
        return tuple(
            BlockLayer(window=window, causal=flag)
            for window, flag in zip(windows, causal, strict=True)
        )

    def windows(self) -> tuple[int | None, ...]:
        key, pattern = (
            self.meta.arch_key(f"attention.sliding_window{suffix}") for suffix in ("", "_pattern")
        )
        window = self.meta.integer(key, default=0, minimum=0, maximum=MAX_INT32)
        if not window:
            sliding = pattern in self.meta and any(self.meta.per_layer_flags(pattern, self.count))
            if sliding:
                raise self.meta.fail(
                    f"key {pattern!r} says that layers have a window, and {key!r} states none", key
                )
            if self.layout is LAYOUT_A and key not in self.meta:
                log.warning(
                    "%s: key %r is missing, so all layers see the whole context. Converters of "
                    "this layout leave it out for drafters with windows too, which then have fewer "
                    "tokens accepted; kinfolk convert writes it",
                    *(self.meta.path or "the drafter", key),
                )
            return (None,) * self.count
        flags = self.meta.per_layer_flags(pattern, self.count, default=True)
        return tuple(window if flag else None for flag in flags)

    def rope(self, head_dim: int) -> Rope:
        rope = read_rope(self.meta, head_dim, default_dims=head_dim)
        if self.layout is LAYOUT_A and rope.base == _SUSPECT_BASE:
            log.warning(
                "%s: key %r is 1e6. Converters of this layout have written that for drafters of "
                "another base (1e7), which then have fewer tokens accepted; kinfolk convert writes "
                "the drafter's own",
                *(self.meta.path or "the drafter", self.meta.arch_key("rope.freq_base")),
            )
        return rope

    def gate(self, heads: int, head_dim: int) -> GateKind:
        info = self.layout.find(self.inventory, "blk.0.attn_gate.weight")
        if info is None:
            return "none"
        # A matrix of a single row may be stored as a vector.
        rows = info.rows if len(info.shape) > 1 else 1
        if rows not in (heads, heads * head_dim):
            raise self.misshapen(
                info,
                f"has {rows} rows, expected one for each of {heads} heads, or for each of their "
                f"{heads}·{head_dim} numbers",
            )
        return "head" if rows == heads else "element"

    def activation(self) -> Activation:
        key = self.meta.arch_key("hidden_activation")
        stated = self.meta.string(key, default="silu")
        if stated not in _ACTIVATIONS:
            known = ", ".join(map(repr, _ACTIVATIONS))
            raise self.meta.unsupported(f"key {key!r} is {stated!r}; known are {known}")
        return _ACTIVATIONS[stated]

    # -- DFlash 2 -----------------------------------------------------------------------------

    def convolution(self) -> Convolution | None:
        base = self.layout.find(self.inventory, "blk.0.attn_conv_base")
        if base is None:
            return None
        group = self.required("conv_group_size")
        if self.width % group:
            raise self.meta.fail(
                f"key {self.meta.arch_key('conv_group_size')!r} is {group}, which does not divide "
                f"the {self.width} channels",
                self.meta.arch_key("conv_group_size"),
            )
        taps = self.required("conv_kernel_size")
        if base.shape != (2, taps, self.width):
            raise self.misshapen(
                base, f"has shape {base.shape}, expected (2, {taps}, {self.width})"
            )
        return Convolution(taps=taps, group=group)

    def selector(self) -> Selector | None:
        if not self.has(SELECTOR_HIDDEN):
            return None
        rank = self.tensor(SELECTOR_HIDDEN).shape[0]
        self.compare("selector_rank", rank, SELECTOR_HIDDEN)
        for name in SELECTOR:
            self.tensor(name)
        return Selector(rank=rank, top_k=self.required("selector_top_k"))

    # -- vocabulary ---------------------------------------------------------------------------

    def vocabulary(self) -> int | None:
        key = self.meta.arch_key("vocab_size")
        if "tokenizer.ggml.tokens" in self.meta:
            return len(self.meta.strings("tokenizer.ggml.tokens"))
        if key in self.meta:
            return self.meta.integer(key, minimum=1)
        embedding = self.layout.find(self.inventory, EMBEDDING_TENSOR)
        return None if embedding is None else embedding.shape[0]

    def mask_token(self, vocabulary: int | None) -> int:
        key = self.layout.mask_token or self.meta.arch_key(f"{self.layout.prefix}mask_token_id")
        if key not in self.meta:
            raise self.meta.fail(
                f"key {key!r}, the token of masked rows, is missing: the drafter cannot run "
                "without it",
                key,
            )
        most = MAX_INT32 if vocabulary is None else vocabulary - 1
        return self.meta.integer(key, minimum=0, maximum=most)

    def draft_ids(self, vocabulary: int | None) -> tuple[int, ...]:
        info = self.layout.find(self.inventory, DRAFT_IDS)
        if info is None:
            return ()
        if self.layout is LAYOUT_A:
            raise self.meta.unsupported(
                f"tensor {info.name!r} of a reduced vocabulary: files of this layout do not say "
                "whether its numbers are tokens or offsets; convert the drafter with kinfolk "
                "convert"
            )
        if not self.has(HEAD_TENSOR):
            raise self.misshapen(
                info,
                f"lists {info.shape[-1]} tokens of a head, but there is no {HEAD_TENSOR!r}",
            )
        return head_tokens(self.inventory, info, vocabulary)

    # -- numbers ------------------------------------------------------------------------------

    def number(self, name: str, *, default: float, maximum: float = _MOST_SCALE) -> float:
        return self.meta.number(self.meta.arch_key(name), default=default, above=0, maximum=maximum)

    def optional(self, name: str) -> float | None:
        """A factor or bound that 0 turns off."""
        key = self.meta.arch_key(name)
        return self.meta.number(key, default=0.0, minimum=0, maximum=_MOST_SCALE) or None

    def own_integer(self, name: str, default: int, minimum: int, maximum: int) -> int:
        key = self.meta.arch_key(f"{self.layout.prefix}{name}")
        return self.meta.integer(key, default=default, minimum=minimum, maximum=maximum)

    def required(self, name: str) -> int:
        return self.meta.integer(self.meta.arch_key(name), minimum=1, maximum=MAX_INT32)

    def compare(self, name: str, found: int, tensor: str) -> None:
        """Mention a key that contradicts a tensor, which counts."""
        key = self.meta.arch_key(name)
        if key in self.meta and self.meta.integer(key) != found:
            log.warning(
                "%s: key %r is %d, but tensor %r has %d, which counts",
                *(self.meta.path or "the drafter", key, self.meta.integer(key)),
                *(self.tensor(tensor).name, found),
            )
