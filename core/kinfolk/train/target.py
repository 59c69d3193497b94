"""The target while a drafter is trained for it: its features, and frozen embedding and head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.loading import LoadedModel
from kinfolk.errors import UnsupportedModelError
from kinfolk.sched.plan import Item, ItemKind
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
            found = self._computed(text.tokens).cpu()
            size = found.numel() * found.element_size()
            if size <= self._left:
                self._left -= size
                self._kept[text] = found
        return found

    @torch.no_grad()
    def _computed(self, tokens: Sequence[int]) -> torch.Tensor:
        tables, parts = self._kv_cache.tables, []
        lease = self._kv_cache.open(len(tokens))
        try:
            for start in range(0, len(tokens), self.loaded.slice_rows):
                part = tuple(tokens[start : start + self.loaded.slice_rows])
                tables.extend(lease, start + len(part))
                self._state.apply(self._kv_cache.take_operations())
                item = Item(lease, "train", ItemKind.PREFILL, part, start)
                batch = build_input_batch([item], self._state, all_logits=True).batch
                features = self.loaded.model.forward(batch, self._state).features
                assert features is not None, "the model was asked for features"
                parts.append(features[: len(part)].clone())
                tables.advance(lease, start + len(part))
        finally:
            tables.release(lease)
        return torch.cat(parts)

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
