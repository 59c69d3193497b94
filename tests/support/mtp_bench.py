"""Blocks of random weights for multi-token prediction: files, plain torch, and a bench.

The plain implementation computes whole sequences at once from the arrays of the file, and shares
nothing with the drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from kinfolk.engine.commit_batch import commit_batch, commit_tree_rows
from kinfolk.engine.draft_buffers import DraftBuffers, Lane
from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, Job, OutputTensor
from kinfolk.gguf.values import Value
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk.registry import Registry
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Sampling
from kinfolk.settings import load_settings
from kinfolk.state.chunks import SlotLease

CASES = Path(__file__).parents[1] / "data" / "cases"
FULL_LAYER, BLOCK = 3, 5
HEADS, KV_HEADS, DIM, ROTARY = 4, 2, 32, 8
WIDTH, VOCABULARY, TOP_K, BASE, EPS = 64, 768, 3, 1e6, 1e-6
F32, I64 = 0, 27
SHARP = 3
"""Random queries and routers are so large that a few keys and experts decide."""

Arrays = dict[str, np.ndarray]


# -- files ----------------------------------------------------------------------------------------


def random_block(arrays: Arrays, seed: int = 0) -> Arrays:
    """The tensors of a block behind the five layers, shaped as layer 3."""
    generator = np.random.default_rng(seed)

    def norm(shape: tuple[int, ...]) -> np.ndarray:
        return 1 + 0.3 * generator.standard_normal(shape)

    def matrix(shape: tuple[int, ...], sharp: float = 1) -> np.ndarray:
        return sharp * generator.standard_normal(shape) / shape[-1] ** 0.5

    found = {}
    for name, array in arrays.items():
        if name.startswith(f"blk.{FULL_LAYER}."):
            sharp = SHARP if name.endswith(("attn_q.weight", "ffn_gate_inp.weight")) else 1
            make = norm(array.shape) if array.ndim == 1 else matrix(array.shape, sharp)
            found[name.replace(f"blk.{FULL_LAYER}.", f"blk.{BLOCK}.")] = make
    for name in ("enorm", "hnorm", "shared_head_norm"):
        found[f"blk.{BLOCK}.nextn.{name}.weight"] = norm((WIDTH,))
    found[f"blk.{BLOCK}.nextn.eh_proj.weight"] = matrix((WIDTH, 2 * WIDTH))
    return found


def write_model(
    path: Path,
    case: str = "qwen35",
    change: Callable[[Arrays], object] = lambda arrays: None,
    keys: Callable[[dict[str, Any]], object] = lambda keys: None,
) -> Arrays:
    """Write a reference case with a block behind it; ``change`` may edit the tensors in place.
    Returns the tensors."""
    formats = QuantFormats()
    with GGUFFile.open(CASES / f"{case}.gguf") as file:
        arrays: Arrays = {
            name: QuantTensor.from_bytes(
                file.inventory.bytes(name), formats.of_type(info.ggml_type), info.shape
            )
            .dequantize()
            .numpy()
            for name, info in file.inventory.items()
        }
        values = {key: file.metadata.value(key) for key in file.metadata}
    values[f"{case}.block_count"] = Value("u32", BLOCK + 1)
    values[f"{case}.nextn_predict_layers"] = Value("u32", 1)
    arrays |= random_block(arrays)
    change(arrays)
    keys(values)
    stored = {
        name: np.ascontiguousarray(array, "<i8" if name.endswith("d2t") else "<f4")
        for name, array in arrays.items()
    }
    layouts = [
        OutputTensor(name, array.shape, I64 if name.endswith("d2t") else F32, array.nbytes)
        for name, array in stored.items()
    ]
    with GGUFOutput(path, values, layouts, overwrite=True) as output:
        data = {name: array.reshape(-1).view(np.uint8) for name, array in stored.items()}
        output.run([Job(name, 0, lambda one=one: one) for name, one in data.items()], workers=1)
    return stored


# -- plain torch ----------------------------------------------------------------------------------


class Reference:
    """One sequence of the block: what it proposes behind committed tokens and hidden states."""

    def __init__(self, arrays: Arrays, *, post_norm: bool = True) -> None:
        self.tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        self.post_norm = post_norm
        self.tokens: list[int] = []
        self.hidden = torch.zeros(1, WIDTH)  # before the first token

    def extend(self, tokens: Sequence[int], hidden: torch.Tensor) -> None:
        """Commit tokens and the target's hidden states of their rows."""
        self.tokens += tokens
        self.hidden = torch.cat([self.hidden, hidden])

    def draft(self, token: int, passes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What each pass computes for the last row, greedily: the normed rows [passes, width] and
        the logits [passes, vocabulary]."""
        tokens, hidden, normed, logits = [*self.tokens, token], self.hidden, [], []
        for _ in range(passes):
            before, after = self.rows(tokens, hidden)
            normed.append(after[-1])
            logits.append(self.head(after[-1]))
            tokens.append(self.token(logits[-1]))
            carried = after if self.post_norm else before
            hidden = torch.cat([hidden, carried[-1:]])
        return torch.stack(normed), torch.stack(logits)

    def rows(self, tokens: list[int], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All rows behind the layer, and behind the last norm."""
        get = self.get
        table = self.tensors.get(f"blk.{BLOCK}.nextn.embed_tokens.weight")
        table = self.tensors["token_embd.weight"] if table is None else table
        both = [norm(table[tokens], get("nextn.enorm")), norm(hidden, get("nextn.hnorm"))]
        x = torch.cat(both, 1) @ get("nextn.eh_proj").T
        x = x + self.attention(norm(x, get("attn_norm")))
        x = x + self.feed_forward(norm(x, get("post_attention_norm")))
        last = self.tensors.get(f"blk.{BLOCK}.nextn.shared_head_norm.weight")
        return x, norm(x, self.tensors["output_norm.weight"] if last is None else last)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        n, get = len(x), self.get
        q, gate = (x @ get("attn_q").T).view(n, HEADS, 2 * DIM).split(DIM, 2)
        k, v = ((x @ get(f"attn_{name}").T).view(n, KV_HEADS, DIM) for name in "kv")
        q = rotated(norm(q, get("attn_q_norm")))
        k = rotated(norm(k, get("attn_k_norm")))
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / DIM**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v) * gate.sigmoid()
        return mixed.flatten(1) @ get("attn_output").T

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        get = self.get
        if f"blk.{BLOCK}.ffn_gate_inp.weight" not in self.tensors:
            return gated(x, get("ffn_gate"), get("ffn_up"), get("ffn_down"))
        chance, chosen = (x @ get("ffn_gate_inp").T).softmax(-1).topk(TOP_K, -1)
        chance = chance / chance.sum(-1, keepdim=True)
        stacks = [get(f"ffn_{name}_exps") for name in ("gate", "up", "down")]
        routed = torch.stack(
            [
                sum(
                    share * gated(row[None], *(stack[expert] for stack in stacks))[0]
                    for share, expert in zip(chance[i], chosen[i], strict=True)
                )
                for i, row in enumerate(x)
            ]
        )
        shared = gated(x, *(get(f"ffn_{name}_shexp") for name in ("gate", "up", "down")))
        return routed + (x @ get("ffn_gate_inp_shexp").view(-1, 1)).sigmoid() * shared

    def get(self, name: str) -> torch.Tensor:
        return self.tensors[f"blk.{BLOCK}.{name}.weight"]

    def head(self, normed: torch.Tensor) -> torch.Tensor:
        own = self.tensors.get(f"blk.{BLOCK}.nextn.shared_head_head.weight")
        return (self.tensors["output.weight"] if own is None else own) @ normed

    def token(self, logits: torch.Tensor) -> int:
        listed = self.tensors.get(f"blk.{BLOCK}.nextn.d2t")
        best = int(logits.argmax())
        return best if listed is None else int(listed[best])


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def rotated(x: torch.Tensor) -> torch.Tensor:
    """[n, heads, dim]: the first dimensions of row p turn by the angles of position p."""
    half = ROTARY // 2
    turns = BASE ** (-torch.arange(half) / half)
    angles = torch.arange(len(x))[:, None, None] * turns
    first, second, rest = x[..., :half], x[..., half:ROTARY], x[..., ROTARY:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def gated(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


# -- driving --------------------------------------------------------------------------------------


def open_model(path: Path, registry: Registry, **settings: Any) -> LoadedModel:
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 4, "draft": "mtp"}
    return load_model(path, load_settings(**{**options, **settings}), registry)


class Bench:
    """The drafter of a loaded model on a state of its own, fed by hand: the target does not run.

    ``normed`` are the rows before the head of the last draft, a tensor [lanes, width] a pass.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        assert loaded.drafter is not None
        self.loaded, self.plan = loaded, loaded.drafter.plan
        self.drafter: Any = loaded.drafter.drafter
        self.kv_cache, self.state = loaded.new_state()
        self.normed: list[torch.Tensor] = []
        logits = self.drafter.logits

        def record(rows: torch.Tensor) -> torch.Tensor:
            self.normed.append(rows.clone())
            return logits(rows)

        self.drafter.logits = record

    def open(self, positions: int = 400) -> SlotLease:
        return self.kv_cache.open(positions)

    def length(self, lease: SlotLease) -> int:
        return self.kv_cache.tables.length(lease)

    def inputs(self, items: Sequence[Item]) -> Any:
        for item in items:
            self.kv_cache.tables.extend(item.lease, item.start + len(item.tokens))
        self.state.apply(self.kv_cache.take_operations())
        return build_input_batch(items, self.state, all_logits=True)

    @torch.inference_mode()
    def extend(
        self,
        work: dict[SlotLease, tuple[Sequence[int], torch.Tensor]],
        stores: dict[SlotLease, tuple[tuple[int, int], ...]] | None = None,
    ) -> None:
        """Certain rows, tokens and hidden states: the sequences advance."""
        items = [
            Item(
                lease,
                "",
                ItemKind.PREFILL,
                tuple(tokens),
                self.length(lease),
                stores=(stores or {}).get(lease, ()),
            )
            for lease, (tokens, _) in work.items()
        ]
        features = torch.cat([hidden for _, hidden in work.values()]).bfloat16()
        self.drafter.extend(features, self.inputs(items).batch, self.state)
        for item in items:
            self.kv_cache.tables.advance(item.lease, item.start + len(item.tokens))

    @torch.inference_mode()
    def verify(
        self,
        lease: SlotLease,
        tokens: Sequence[int],
        hidden: torch.Tensor,
        keep: Sequence[int],
        parents: Any = None,
    ) -> None:
        """Drafted rows, of which the path ``keep`` is kept."""
        start = self.length(lease)
        item = Item(lease, "", ItemKind.VERIFY, tuple(tokens), start, parents=parents)
        inputs = self.inputs([item])
        trace = self.drafter.extend(hidden.bfloat16(), inputs.batch, self.state)
        path = torch.tensor([list(keep) + [-1] * (inputs.sampled.width - len(keep))])
        commit = commit_batch(inputs.sampled, path, torch.tensor([len(keep)]))
        self.drafter.commit(trace, commit, self.state)
        commit.finish()
        commit_tree_rows(self.state, inputs.batch, inputs.sampled, commit)
        self.kv_cache.tables.advance(lease, start + len(keep))

    @torch.inference_mode()
    def draft(
        self,
        anchors: dict[SlotLease, int],
        sampling: Sampling | None = None,
        *,
        lanes: int | None = None,
        late: int = 0,
    ) -> Any:
        """Proposals behind these tokens; ``lanes`` adds padding, ``late`` moves all rows."""
        self.state.apply(self.kv_cache.take_operations())
        buffers = DraftBuffers(self.state, lanes or len(anchors), self.plan, self.plan.depth)
        buffers.put([Lane(lease.slot, sampling or Sampling()) for lease in anchors])
        buffers.upload()
        slots = self.state.limits.slots + 1
        store: Any = SimpleNamespace(
            drafts=SimpleNamespace(pending=torch.zeros(slots, dtype=torch.int64)),
            length=torch.zeros(slots, dtype=torch.int64),
        )
        for lease, token in anchors.items():
            store.drafts.pending[lease.slot] = token
            store.length[lease.slot] = self.length(lease)
        block = buffers.draft_block(store)
        block = replace(block, batch=replace(block.batch, positions=block.batch.positions + late))
        self.normed.clear()
        return self.drafter.draft(block, self.state)

    def rows(self, lane: int = 0) -> torch.Tensor:
        """The rows before the head of a lane's last draft [passes, width]."""
        return torch.stack([rows[lane] for rows in self.normed])

    def hidden(self, slot: int) -> torch.Tensor:
        """The hidden state that is kept in a slot."""
        return self.drafter.hidden.rows(self.state)[slot].clone()

    def stored(self, lease: SlotLease) -> list[torch.Tensor]:
        """The keys and values of committed positions, and the hidden state."""
        view, found = self.state.paged(self.drafter.layer.writer.layer), []
        length = self.length(lease)
        table = self.state.pools[view.pool_index].tables[lease.slot]
        for name in ("k", "v"):
            rows = [
                view.pool(name)[block, :, : max(0, min(64, length - chunk * 64))]
                for chunk, block in sorted(table.items())
            ]
            found.append(torch.cat(rows, 1).clone())
        return [*found, self.hidden(lease.slot)]

    def poison_uncommitted(self, leases: Sequence[SlotLease]) -> None:
        """Fill every place that no committed position of the sequences has, the arena, and the
        slots of nobody, with NaN."""
        for pool in self.state.pools:
            kept = {}
            for lease in leases:
                for chunk, block in pool.tables[lease.slot].items():
                    rows = max(0, min(64, self.length(lease) - chunk * 64))
                    kept[block] = (rows, pool.data[block].clone())
            pool.data.fill_(0xFF)
            pool.arena.fill_(0xFF)
            for block, (rows, before) in kept.items():
                pool.data[block] = before
                for section in pool.layout.sections.values():
                    for plane in pool.planes(pool.data, section):
                        plane[block, :, rows:] = float("nan")
        hidden = self.drafter.hidden.rows(self.state)
        others = set(range(len(hidden))) - {lease.slot for lease in leases}
        hidden[sorted(others)] = float("nan")


def random_rows(count: int, seed: int = 3) -> tuple[list[int], torch.Tensor]:
    """Tokens, and hidden states [count, width] that bfloat16 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()
    return tokens, torch.randn(count, WIDTH, generator=generator).bfloat16().float()


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference of a row, relative to the largest number of the row."""
    assert found.shape == expected.shape
    return float(((found - expected).abs().amax(-1) / expected.abs().amax(-1)).max())
