"""DFlash drafters of random weights in files of both layouts, and a bench that drives them.

The bench has a state, block tables and leases as the engine has them, and a target that consists of
tables only: features are given to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dflash_reference import Shape

from kinfolk.config import ModelConfig
from kinfolk.draft_api import DraftBlock, Proposals, TargetFacts
from kinfolk.engine.commit_batch import commit_batch, commit_tree_rows
from kinfolk.engine.input_batch import build_input_batch
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.output import GGUFOutput, Job, OutputTensor
from kinfolk.nn.context import BuildContext
from kinfolk.ops.binding import Ops
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk.plans import Codec, Paged, Section, StateLimits, StatePlan
from kinfolk.quant.formats import QuantFormats
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.spec.dflash.model import DFlash, build
from kinfolk.spec.dflash.prepare import prepare
from kinfolk.state.chunks import SlotLease
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.state import State
from kinfolk.weights.loader import load_weights

F32, I64 = 0, 27
TARGET_LAYERS = 6
CONTEXT = 512
EXACT = Codec("f32")

SHAPES = {
    "full": Shape(),
    "sliding, then full": Shape((9, 9, None), (True, True, False)),
    "sliding, all bidirectional": Shape((9, 9), (False, False)),
    "all causal": Shape((None, None), (True, True)),
    "yarn": Shape(dim=64, heads=2, kv_heads=1, theta=1e7, yarn=(64.0, 4096, 32.0, 1.0)),
    "gates of heads": Shape(
        (12, 12), (True, True), block=8, feature_norms=True, context_norm=True, gate="head"
    ),
    "gates of elements": Shape(
        block=8, feature_norms=True, context_norm=True, gate="element", feature_layers=(1, 4)
    ),
    "context norm alone": Shape(context_norm=True),
    "convolutions": Shape((9, None), (True, False), conv=(3, 16), block=8),
    "convolutions and selector": Shape(conv=(2, 8), selector=(12, 5)),
    "scales": Shape(scale=0.4, value_scale=0.7, logit_scale=1.5, activation="gelu_pytorch_tanh"),
    "one feature layer, one key head": Shape(feature_layers=(2,), kv_heads=1, block=2),
}
"""What drafters of files can be, one by one."""

IN_LAYOUT_A = {
    name: SHAPES[name]
    for name in ("full", "sliding, then full", "yarn", "gates of heads", "gates of elements")
}


TOP_B = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
}
TOP_A = TOP_B | {
    "fc.weight": "dflash.fc.weight",
    "hidden_norm.weight": "dflash.hidden_norm.weight",
}
IN_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.g_proj.weight": "attn_gate.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}


# -- files ----------------------------------------------------------------------------------------


def file_tensors(tensors: dict[str, torch.Tensor], layout: str) -> dict[str, np.ndarray]:
    """The tensors of a file in layout ``A`` or ``B``."""
    top, found, norms = TOP_A if layout == "A" else TOP_B, {}, []
    for name, tensor in tensors.items():
        if name.startswith("layers."):
            _, layer, local = name.split(".", 2)
            found[f"blk.{layer}.{IN_LAYER[local]}"] = tensor.numpy()
        elif name.startswith("aux_hidden_norms."):
            norms.append(tensor)
        else:
            found[top[name]] = tensor.numpy()
    if norms and layout == "B":
        found["enc.aux_norm.weight"] = torch.stack(norms).numpy()
    for index, norm in enumerate(norms if layout == "A" else ()):
        found[f"dflash.aux_hidden_norm.{index}.weight"] = norm.numpy()
    return found


def file_keys(shape: Shape, layout: str) -> dict[str, Any]:
    """The metadata of a file in layout ``A`` or ``B``, as its converters write it."""
    arch = "dflash" if layout == "B" else "some-dflash-draft"
    windows = [window for window in shape.windows if window is not None]
    keys: dict[str, Any] = {
        "block_count": len(shape.windows),
        "context_length": CONTEXT,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ff,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.dim,
        "attention.value_length": shape.dim,
        "attention.layer_norm_rms_epsilon": shape.eps,
        "rope.freq_base": shape.theta,
        "attention.sliding_window": windows[0] if windows else 0,
        "attention.sliding_window_pattern": [window is not None for window in shape.windows],
    }
    if shape.yarn is not None:
        factor, original, fast, slow = shape.yarn
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": factor,
            "rope.scaling.original_context_length": original,
            "rope.scaling.yarn_beta_fast": fast,
            "rope.scaling.yarn_beta_slow": slow,
        }
    if shape.causal != tuple(window is not None for window in shape.windows):
        (keys["attention.causal"],) = set(shape.causal)
    if shape.softcap is not None:
        keys["final_logit_softcapping"] = shape.softcap
    if layout == "A":
        keys |= {
            "vocab_size": shape.vocabulary,
            "dflash.block_size": shape.block,
            "dflash.mask_token_id": shape.mask,
            "dflash.n_target_layers": len(shape.feature_layers),
            "dflash.target_layer_ids": list(shape.feature_layers),
            "dflash.context_kv_layer_norm": int(shape.context_norm),
        }
        return {"general.architecture": arch} | {f"{arch}.{k}": v for k, v in keys.items()}
    keys |= {
        "block_size": shape.block,
        "target_layers": [layer + 1 for layer in shape.feature_layers],
        "embedding_scale": shape.embedding_scale,
        "logit_scale": shape.logit_scale,
        "attention.value_scale": shape.value_scale,
        "hidden_activation": shape.activation,
    }
    if shape.context_norm != shape.feature_norms:
        keys["context_kv_layer_norm"] = shape.context_norm
    if shape.scale is not None:
        keys["attention.scale"] = shape.scale
    if shape.conv is not None:
        keys["conv_kernel_size"], keys["conv_group_size"] = shape.conv
    if shape.selector is not None:
        keys["selector_rank"], keys["selector_top_k"] = shape.selector
    return {
        "general.architecture": arch,
        **{f"{arch}.{k}": v for k, v in keys.items()},
        "tokenizer.ggml.tokens": vocabulary(shape),
        "tokenizer.ggml.mask_token_id": shape.mask,
    }


def vocabulary(shape: Shape) -> list[str]:
    return [f"t{token}" for token in range(shape.vocabulary)]


def write_file(path: Path, keys: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    arrays = {
        name: np.ascontiguousarray(array, "<i8" if name == "d2t" else "<f4")
        for name, array in tensors.items()
    }
    layouts = [
        OutputTensor(name, array.shape, I64 if name == "d2t" else F32, array.nbytes)
        for name, array in arrays.items()
    ]
    with GGUFOutput(path, keys, layouts, overwrite=True) as output:
        data = {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()}
        output.run([Job(name, 0, lambda one=one: one) for name, one in data.items()], workers=1)
    return path


def write_drafter(
    path: Path, shape: Shape, tensors: dict[str, torch.Tensor], layout: str = "B"
) -> Path:
    found = file_tensors(tensors, layout)
    if shape.d2t:
        found["d2t"] = np.array(shape.d2t)
    return write_file(path, file_keys(shape, layout), found)


# -- the target -----------------------------------------------------------------------------------


class TableTarget:
    """A target of an embedding and a head, both random; scale and softcap as gemma has them."""

    def __init__(
        self, shape: Shape, *, scale: float = 1.0, softcap: float | None = None, seed: int = 1
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        size = (shape.vocabulary, shape.width)
        self.table = torch.randn(size, generator=generator).bfloat16().float()
        self.head = (torch.randn(size, generator=generator) / 4).bfloat16().float()
        self.embedding_scale, self.softcap_limit = scale, softcap

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens] * self.embedding_scale

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * 0  # a drafter must not apply it

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        logits = normed.float() @ self.head.T
        if self.softcap_limit is None:
            return logits
        return (logits / self.softcap_limit).tanh() * self.softcap_limit


def facts(
    shape: Shape, *, layers: int = TARGET_LAYERS, codec: Codec = EXACT, **changes: Any
) -> TargetFacts:
    """A target that the shape is for; ``changes`` are fields of its configuration."""
    fields = {"width": shape.width, "vocabulary": shape.vocabulary, **changes}
    config = ModelConfig(
        architecture="some", layers=layers, context=CONTEXT, norm_eps=1e-6, **fields
    )
    section = Section("k", 1, 32, codec)
    meta = Metadata.from_dict({"tokenizer.ggml.tokens": vocabulary(shape)}, Path("target.gguf"))
    state = StatePlan((Paged((section, replace(section, name="v"))),))
    return TargetFacts(Path("target.gguf"), "some", meta, config, state, CONTEXT, codec)


# -- driving --------------------------------------------------------------------------------------


class Bench:
    """A built drafter with its state. ``config`` replaces fields of the configuration that was
    read: that makes a drafter with a mistake."""

    def __init__(
        self,
        path: Path,
        target: Any,
        shape: Shape,
        *,
        codec: Codec = EXACT,
        ops: Ops | None = None,
        **config: Any,
    ) -> None:
        self.file = GGUFFile.open(path)
        about = facts(shape, codec=codec)
        self.plan = prepare(self.file, about)
        if config:
            changed = self.plan.config.model_copy(update=config)
            windows = [layer.window for layer in changed.layers]
            state = tuple(
                replace(layer, window=window)
                for layer, window in zip(self.plan.state, windows, strict=True)
            )
            self.plan = replace(self.plan, config=changed, state=state)
        self.state_plan = StatePlan((*about.state.layers, *self.plan.state))
        pools = len(self.state_plan.windows)
        self.limits = StateLimits(
            slots=4, checkpoints=0, blocks=(40,) * pools, context=CONTEXT + 64, step_rows=512,
            tree_rows=256, codec=codec,
        )  # fmt: skip
        device = torch.device("cpu")
        weights = load_weights(self.plan.weights, self.file.inventory, QuantFormats())
        context = BuildContext(
            ops or Ops(OP_BACKENDS), device, torch.float32, self.state_plan, CONTEXT
        )
        self.drafter: DFlash = build(self.plan, weights, context, target)
        self.kv_cache = KVCacheManager(self.state_plan.windows, self.limits, recurrent=False)
        self.state = State(self.state_plan, self.limits, device)

    def open(self, positions: int = 400) -> SlotLease:
        return self.kv_cache.open(positions)

    def length(self, lease: SlotLease) -> int:
        return self.kv_cache.tables.length(lease)

    def inputs(self, items: Sequence[Item]) -> Any:
        for item in items:
            self.kv_cache.tables.extend(item.lease, item.start + len(item.tokens))
        self.state.apply(self.kv_cache.take_operations())
        return build_input_batch(items, self.state, all_logits=True)

    def item(self, lease: SlotLease, rows: int, kind: ItemKind, parents: Any = None) -> Item:
        return Item(lease, "", kind, (0,) * rows, self.length(lease), parents=parents)

    @torch.inference_mode()
    def extend(self, features: dict[SlotLease, torch.Tensor]) -> None:
        """Certain rows: the sequences advance."""
        items = [self.item(one, len(rows), ItemKind.PREFILL) for one, rows in features.items()]
        inputs = self.inputs(items)
        self.drafter.extend(torch.cat(list(features.values())).bfloat16(), inputs.batch, self.state)
        for item in items:
            self.kv_cache.tables.advance(item.lease, item.start + len(item.tokens))

    @torch.inference_mode()
    def verify(
        self, lease: SlotLease, features: torch.Tensor, keep: Sequence[int], parents: Any = None
    ) -> None:
        """Drafted rows, of which the path ``keep`` is kept."""
        item = self.item(lease, len(features), ItemKind.VERIFY, parents)
        inputs = self.inputs([item])
        trace = self.drafter.extend(features.bfloat16(), inputs.batch, self.state)
        width = inputs.sampled.width
        path = torch.tensor([list(keep) + [-1] * (width - len(keep))])
        commit = commit_batch(inputs.sampled, path, torch.tensor([len(keep)]))
        self.drafter.commit(trace, commit, self.state)
        commit.finish()
        commit_tree_rows(self.state, inputs.batch, inputs.sampled, commit)
        self.kv_cache.tables.advance(item.lease, item.start + len(keep))

    def block(self, anchors: dict[SlotLease, int]) -> DraftBlock:
        rows = self.plan.block
        chain = tuple(range(-1, rows - 1))
        items = [self.item(lease, rows, ItemKind.VERIFY, chain) for lease in anchors]
        batch = self.inputs(items).batch
        tokens = torch.full((len(items), rows), self.plan.fill)
        tokens[:, 0] = torch.tensor(list(anchors.values()))
        everything = -1 if rows == 64 else (1 << rows) - 1
        batch = replace(
            batch,
            tokens=tokens.flatten(),
            positions=batch.positions.clamp(max=CONTEXT - 1),
            ancestors=torch.full_like(batch.ancestors, everything),
        )
        starts = torch.tensor([item.start for item in items])
        zeros = torch.zeros(len(items))
        slots = torch.tensor([item.lease.slot for item in items])
        return DraftBlock(tokens[:, 0], starts, slots, zeros.long(), zeros, batch, self.plan.depth)

    @torch.inference_mode()
    def hidden(self, anchors: dict[SlotLease, int]) -> torch.Tensor:
        """[lanes, block, width] after the last norm."""
        rows = self.drafter.hidden(self.block(anchors), self.state)
        return rows.view(len(anchors), self.plan.block, -1)

    @torch.inference_mode()
    def draft(self, anchors: dict[SlotLease, int]) -> Proposals:
        return self.drafter.draft(self.block(anchors), self.state)

    def poison_uncommitted(self, lease: SlotLease) -> None:
        """Fill every place of the pools that no committed position of the sequence has, and the
        arena, with NaN."""
        length = self.length(lease)
        for pool in self.state.pools:
            kept = {}
            for chunk, block in pool.tables[lease.slot].items():
                rows = max(0, min(64, length - chunk * 64))
                kept[block] = (rows, pool.data[block].clone())
            pool.data.fill_(0xFF)
            pool.arena.fill_(0xFF)
            for block, (rows, before) in kept.items():
                pool.data[block] = before
                for section in pool.layout.sections.values():
                    for plane in pool.planes(pool.data, section):
                        plane[block, :, rows:] = float("nan")

    def stored(self, lease: SlotLease) -> list[torch.Tensor]:
        """Copies of the rows of committed positions, pool by pool, section by section."""
        copies, length = [], self.length(lease)
        for pool in self.state.pools:
            for section in pool.layout.sections.values():
                for plane in pool.planes(pool.data, section):
                    rows = [
                        plane[block, :, : max(0, min(64, length - chunk * 64))]
                        for chunk, block in sorted(pool.tables[lease.slot].items())
                    ]
                    copies.append(torch.cat(rows, 1).clone())
        return copies


def random_features(shape: Shape, rows: int, seed: int = 3) -> torch.Tensor:
    """[rows, feature_layers * width] that bfloat16 holds exactly, larger for later layers."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, len(shape.feature_layers), shape.width, generator=generator)
    sizes = torch.arange(1, len(shape.feature_layers) + 1)[:, None]
    return (values * sizes).flatten(1).bfloat16().float()


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference of a row, relative to the largest number of the row."""
    assert found.shape == expected.shape
    return float(((found - expected).abs().amax(-1) / expected.abs().amax(-1)).max())
