"""Muon for the matrices of the layers and AdamW for the rest, with fp32 master weights.

The optimizer owns the master weights. The model has the weights of the forward pass: fp32 vectors
and bf16 matrices; late in the run, the matrices are rounded to the Q4_K grid (``snap.py``). The
gradients of the rounded weights update the masters: this is the straight-through estimator.

Muon: Jordan et al. (2024). Its update is scaled to the size of AdamW's as in Liu et al., "Muon is
Scalable for LLM Training" (2025), so that one schedule serves both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)

Rounding = Callable[[str, Tensor], Tensor]


def orthogonalise(update: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices of [n, rows, columns], by a quintic Newton iteration."""
    a, b, c = COEFFICIENTS
    x = update.bfloat16() if update.is_cuda else update.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.mT if tall else x).float()
    return result


class Optimizer:
    """``step(muon_lr, adam_lr)`` updates the masters and writes rounded weights to the model."""

    def __init__(self, model: nn.Module, muon_decay: float, adam_decay: float) -> None:
        self.muon_decay = muon_decay
        self.names = {id(p): name for name, p in model.named_parameters()}
        groups: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "layers" in name and min(parameter.shape) >= 16:
                groups[tuple(parameter.shape)].append(parameter)
            else:
                others.append(parameter)
        self.groups = list(groups.values())
        self.masters = [torch.stack([p.detach().float() for p in g]) for g in self.groups]
        self.momenta = [torch.zeros_like(m) for m in self.masters]
        self.others = others
        self.other_masters = [p.detach().float().clone() for p in others]
        decayed = [m for p, m in zip(others, self.other_masters, strict=True) if p.ndim == 2]
        plain = [m for p, m in zip(others, self.other_masters, strict=True) if p.ndim != 2]
        self.adam = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": adam_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=0.0,
            betas=(0.9, 0.95),
            eps=1e-10,
            fused=self.other_masters[0].is_cuda,
        )

    @torch.no_grad()
    def step(self, muon_lr: float, adam_lr: float, rounding: Rounding | None = None) -> None:
        for group, master, momentum in zip(self.groups, self.masters, self.momenta, strict=True):
            grad = torch.stack([_grad(p) for p in group]).float()
            momentum.lerp_(grad, 1 - MOMENTUM)
            update = orthogonalise(grad.lerp_(momentum, MOMENTUM))
            scale = 0.2 * max(master.shape[-2:]) ** 0.5
            master.mul_(1 - muon_lr * self.muon_decay).add_(update, alpha=-muon_lr * scale)
        for parameter, master in zip(self.others, self.other_masters, strict=True):
            master.grad = _grad(parameter).float()
        for settings in self.adam.param_groups:
            settings["lr"] = adam_lr
        self.adam.step()
        self.write(rounding)

    @torch.no_grad()
    def write(self, rounding: Rounding | None = None) -> None:
        """Copy the masters into the model; ``rounding`` rounds the matrices first."""
        for parameter, master in self._pairs():
            value = master
            if rounding is not None and master.ndim == 2:
                value = rounding(self.names[id(parameter)], master)
            parameter.copy_(value)

    def _pairs(self) -> list[tuple[nn.Parameter, Tensor]]:
        pairs = list(zip(self.others, self.other_masters, strict=True))
        for group, master in zip(self.groups, self.masters, strict=True):
            pairs += zip(group, master.unbind(0), strict=True)
        return pairs

    def state_dict(self) -> dict[str, Any]:
        return {
            "masters": self.masters,
            "momenta": self.momenta,
            "other_masters": self.other_masters,
            "adam": self.adam.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("masters", "momenta", "other_masters"):
            for mine, stored in zip(getattr(self, name), state[name], strict=True):
                mine.copy_(stored)
        self.adam.load_state_dict(state["adam"])


def _grad(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError("a parameter took no part in the loss")
    return parameter.grad
