"""The target while a drafter is trained for it: its features, and frozen embedding and head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.loading import LoadedModel
from kinfolk.errors import UnsupportedModelError
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.state.chunks import SlotLease
from kinfolk.train.texts import Text

_HEAD_ERROR: Final = 0.02
"""Relative error up to which a matrix is the model's head: that of bfloat16 or int8 activations."""


class FrozenTarget:
    """A loaded model that no gradient changes.

    Its features are the outputs of ``feature_layers``, and behind them that of the last norm if
    ``final``. Features of texts are kept in host memory, up to ``kept_bytes``, and computed again
    otherwise; they are the same either way. Raises :class:`UnsupportedModelError` for a model
    without features or with a head that is not one matrix.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        feature_layers: Sequence[int],
        *,
        final: bool = False,
        kept_bytes: int = 0,
    ) -> None:
        features = getattr(loaded.model, "features", None)
        if features is None:
            raise UnsupportedModelError(
                f"{loaded.file.path}: family {loaded.family.name!r} has no features "
                "(Model.features), which the drafter reads, so none can be trained for it"
            )
        features(tuple(feature_layers), final=final)
        self.loaded, self.device = loaded, loaded.device
        self._kv_cache, self._state = loaded.new_state()
        self._kept: dict[Text, torch.Tensor] = {}
        self._left = kept_bytes
        self.softcap: float | None = getattr(loaded.model, "softcap_limit", None)
        self.head = self._head()
        self.last_norm = self._last_norm()

    # -- features -----------------------------------------------------------------------------

    def features(self, text: Text) -> torch.Tensor:
        """float32 [S, N * width] of all tokens of a text, rounded to bfloat16 as drafters get
        them."""
        return self.keep(text).to(self.device).float()

    def keep(self, text: Text) -> torch.Tensor:
        """The features on the CPU in bfloat16, computed unless they are kept."""
        found = self._kept.get(text)
        if found is None:
            (found,) = self._computed([text.tokens])
            self._put(text, found)
        return found

    def keep_all(self, texts: Sequence[Text]) -> Iterator[int]:
        """Compute and keep the features of texts, as many at once as have slots, until there is no
        room. Yields how many texts are done."""
        group: list[Text] = []
        for number, text in enumerate(texts):
            if text not in self._kept:
                group.append(text)
            following = texts[number + 1 : number + 2]
            rows = sum(len(one.tokens) for one in (*group, *following))
            full = len(group) >= self.loaded.limits.slots or rows > self.loaded.slice_rows
            if group and (full or not following):
                found = self._computed([one.tokens for one in group])
                for one, features in zip(group, found, strict=True):
                    self._put(one, features)
                group = []
            yield number + 1
            if self._left <= 0:
                return

    def _put(self, text: Text, features: torch.Tensor) -> None:
        size = features.numel() * features.element_size()
        if size <= self._left:
            self._kept[text] = features
        self._left -= size

    @torch.no_grad()
    def _computed(self, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The features of texts on the CPU, slice by slice: all of them have slots."""
        tables, width = self._kv_cache.tables, self.loaded.slice_rows
        parts: list[list[torch.Tensor]] = [[] for _ in texts]
        leases: list[SlotLease] = []
        try:
            leases += [self._kv_cache.open(len(tokens)) for tokens in texts]
            for start in range(0, max(map(len, texts)), width):
                items = [
                    Item(
                        lease,
                        "train",
                        ItemKind.PREFILL,
                        tuple(tokens[start : start + width]),
                        start,
                    )
                    for lease, tokens in zip(leases, texts, strict=True)
                    if start < len(tokens)
                ]
                for item in items:
                    tables.extend(item.lease, start + item.rows)
                self._state.apply(self._kv_cache.take_operations())
                batch = build_input_batch(items, self._state, all_logits=True).batch
                features = self.loaded.model.forward(batch, self._state).features
                assert features is not None, "the model was asked for features"
                rows = features.cpu().split([item.rows for item in items])
                running = [
                    part for part, tokens in zip(parts, texts, strict=True) if start < len(tokens)
                ]
                for part, item, found in zip(running, items, rows, strict=True):
                    # A part of the whole would keep all of it.
                    part.append(found.clone())
                    tables.advance(item.lease, start + item.rows)
        finally:
            for lease in leases:
                tables.release(lease)
        return [torch.cat(part) for part in parts]

    # -- embedding and head -------------------------------------------------------------------

    @torch.no_grad()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """float32 [..., width] with the target's scale."""
        rows = self.loaded.model.embed(tokens.flatten())
        return rows.float().view(*tokens.shape, -1)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, width] -> float32 [n, vocabulary]; gradients reach the rows."""
        logits = torch.nn.functional.linear(rows.to(self.head.dtype), self.head).float()
        if self.softcap is None:
            return logits
        return self.softcap * torch.tanh(logits / self.softcap)

    @torch.no_grad()
    def _head(self) -> torch.Tensor:
        """The matrix of the head [vocabulary, width], whatever it is stored in: the logits of unit
        rows are its columns."""
        width = self.loaded.config.width
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        columns = []
        for start in range(0, width, 256):
            count = min(256, width - start)
            rows = torch.zeros(count, width, device=self.device)
            rows[torch.arange(count), start + torch.arange(count)] = 1
            logits = self._model_logits(rows)
            if self.softcap is not None:
                logits = self.softcap * torch.atanh(logits / self.softcap)
            columns.append(logits.T.to(dtype))
        head = torch.cat(columns, 1).contiguous()
        self._check_head(head)
        return head

    def _model_logits(self, rows: torch.Tensor) -> torch.Tensor:
        model = self.loaded.model
        return model.logits(rows.to(model.norm(rows[:1]).dtype))

    def _check_head(self, head: torch.Tensor) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(4, head.shape[1], generator=generator).to(self.device)
        expected = self._model_logits(rows)
        self.head = head
        error = float((self.logits(rows) - expected).norm() / expected.norm())
        if not error <= _HEAD_ERROR:
            raise UnsupportedModelError(
                f"{self.loaded.file.path}: the head of family {self.loaded.family.name!r} is not "
                f"one matrix and a softcap (relative error {error:.2g}), so no gradient can be "
                "taken through it"
            )

    @torch.no_grad()
    def _last_norm(self) -> torch.Tensor:
        """The weight of the last norm [width]: a row of ones comes out as the weight."""
        ones = torch.ones(1, self.loaded.config.width, device=self.device)
        weight: torch.Tensor = self.loaded.model.norm(ones)[0].float()
        return weight
