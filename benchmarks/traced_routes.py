"""Back ends of the op ``route`` that play a trace, and that record one.

This module is a plugin like any other: ``with_traced_routes`` adds it to a registry, and
``--op route=played`` or ``--op route=recorded`` chooses one of its back ends. Both compute the
model's own choice first. ``played`` puts the ids of a trace in place of the chosen ones and leaves
the weights, so that answers mean nothing, and all that is timed is done. Where the trace goes on is
counted on the device, by the real rows of each step, so that a captured step plays on at each
replay, and padding and warm-ups play nothing.

What is played or recorded belongs to the ``with`` blocks ``playing`` and ``recording``, inside of
which the model must be opened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from expert_traces import Trace

from kinfolk import hookimpl
from kinfolk.descriptors import YES, OpBackend, Verdict
from kinfolk.registry import Registry
from kinfolk_kernels.route import torch_backend
from kinfolk_kernels.route.op import RouteArguments

KINFOLK_API = (1, 0)

MOST_STEPS = 1 << 16
"""Steps whose rows a player remembers."""

MOST_PLAYED_ROWS = 8192

Chosen = tuple[torch.Tensor, torch.Tensor]


@hookimpl
def register_op_backends() -> list[OpBackend]:
    # Below the reference: they run where they are chosen by name.
    return [
        OpBackend(
            "route",
            "played",
            f"{__name__}:played",
            f"{__name__}:can_play",
            priority=-1,
            capturable=True,
            precompilable=True,
        ),
        OpBackend(
            "route", "recorded", f"{__name__}:recorded", f"{__name__}:can_record", priority=-1
        ),
    ]


def with_traced_routes(registry: Registry) -> Registry:
    """The registry with the back ends of this module."""
    own = Registry.build({"traced-routes": sys.modules[__name__]}, builtin=False)
    own.check()
    return replace(registry, op_backends=(*registry.op_backends, *own.op_backends))


def usual(arguments: RouteArguments, x: torch.Tensor) -> Chosen:
    """The model's own choice."""
    if x.is_cuda:
        from kinfolk_kernels.route import triton_backend

        return triton_backend.route(arguments, x)
    return torch_backend.route(arguments, x)


def can_choose(arguments: RouteArguments) -> Verdict:
    """Whether :func:`usual` can."""
    if not arguments.weight.is_cuda:
        return YES
    from kinfolk_kernels.route import triton_backend

    return triton_backend.supports(arguments)


class Player:
    """Plays a trace to the layers of one model, in the order in which they are built.

    ``real_rows`` int32 [1] on the device: where steps write how many of their rows are no padding
    (``LoadedModel.real_rows``), to be set when the model is loaded; until then nothing is played
    on. Chosen ids come from ``table`` int64 [layers, tokens * sequences, top_k] on the device.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.real_rows: torch.Tensor | None = None
        self._layers: list[RouteArguments] = []
        self._table: torch.Tensor | None = None

    def use(self, trace: Trace) -> None:
        """Play another trace, from its beginning, in a new engine: captured steps of an old one
        would play the old trace. Raises :class:`ValueError` if it does not fit the model."""
        old, new = ((t.layers, t.experts, t.top_k) for t in (self.trace, trace))
        if old != new:
            raise ValueError(f"trace {trace.name} is of other layers than {self.trace.name}")
        self.trace = trace
        if self._table is not None:
            self._fill(self._table.device)

    def verdict(self, arguments: RouteArguments) -> Verdict:
        """Whether the trace fits the next layer."""
        trace, layer = self.trace, len(self._layers)
        experts, top_k = int(arguments.weight.shape[0]), arguments.top_k
        if layer >= trace.layers:
            return Verdict(False, f"trace {trace.name} has {trace.layers} layers, the model more")
        if (experts, top_k) != (trace.experts, trace.top_k):
            return Verdict(
                False,
                f"trace {trace.name} chooses {trace.top_k} of {trace.experts} experts, "
                f"the layer {top_k} of {experts}",
            )
        verdict = can_choose(arguments)
        if verdict:
            self._layers.append(arguments)
            self._enter(arguments.weight.device)
        return verdict

    def _enter(self, device: torch.device) -> None:
        if self._table is None:
            self._fill(device)

    def _fill(self, device: torch.device) -> None:
        stream = np.ascontiguousarray(self.trace.stream.swapaxes(0, 1)).astype(np.int64)
        # Steps in inference mode write to these.
        with torch.inference_mode(False):
            self._table = torch.from_numpy(stream).to(device)
            self._row = torch.arange(MOST_PLAYED_ROWS, device=device)
            self._places = torch.zeros(MOST_PLAYED_ROWS, dtype=torch.int64, device=device)
            self._next = torch.zeros(1, dtype=torch.int64, device=device)
            self._steps = torch.zeros(1, dtype=torch.int64, device=device)
            self._log = torch.zeros(MOST_STEPS, dtype=torch.int32, device=device)

    def ids(self, arguments: RouteArguments, rows: int) -> torch.Tensor:
        """The choices int64 [rows, top_k] of a layer in the running step."""
        assert self._table is not None
        layer = next(n for n, each in enumerate(self._layers) if each is arguments)
        if rows > MOST_PLAYED_ROWS:
            raise ValueError(f"a step of {rows} rows, a trace is played to {MOST_PLAYED_ROWS}")
        if layer == 0:
            self._play_on(rows)
        return self._table[layer].index_select(0, self._places[:rows])

    def _play_on(self, rows: int) -> None:
        """Enter where the rows of the running step are in the trace. Without a wait: this is
        captured too."""
        each, length = self.trace.sequences, len(self.trace.stream)
        places = self._places[:rows]
        torch.add(self._row[:rows], self._next * each, out=places)
        places.remainder_(length)
        if self.real_rows is None:
            return
        real = self.real_rows.clamp(max=rows)
        self._next.add_((real + (each - 1)) // each)
        self._log.index_copy_(0, self._steps.remainder(MOST_STEPS), real)
        self._steps.add_(real > 0)

    def rewind(self) -> None:
        """Begin the trace anew. No step may run."""
        self._next.zero_()
        self._steps.zero_()

    def rows(self) -> list[int]:
        """The real rows of each step since the trace began; waits for the device."""
        steps = int(self._steps)
        if steps > MOST_STEPS:
            raise ValueError(f"{steps} steps were played, {MOST_STEPS} are remembered")
        rows: list[int] = self._log[:steps].tolist()
        return rows


class Recorder:
    """Keeps what the layers of one model choose, in the order in which they are built."""

    def __init__(self) -> None:
        self.layers: list[RouteArguments] = []
        self.ids: list[list[torch.Tensor]] = []

    def verdict(self, arguments: RouteArguments) -> Verdict:
        verdict = can_choose(arguments)
        if verdict:
            self.layers.append(arguments)
            self.ids.append([])
        return verdict

    def keep(self, arguments: RouteArguments, ids: torch.Tensor) -> None:
        layer = next(n for n, each in enumerate(self.layers) if each is arguments)
        self.ids[layer].append(ids.to("cpu", torch.int32, copy=True))

    def experts(self, name: str) -> int:
        """Those of a layer. Raises :class:`ValueError` for a model without experts, and for one
        whose layers differ."""
        sizes = {(int(each.weight.shape[0]), each.top_k) for each in self.layers}
        if len(sizes) != 1:
            raise ValueError(
                f"{name} has layers that choose "
                + (" and ".join(f"{k} of {e} experts" for e, k in sorted(sizes)) or "no experts")
                + ": a trace is of layers that are alike"
            )
        return sizes.pop()[0]

    def trace(self, name: str) -> Trace:
        """All that was chosen, as one sequence; raises what :meth:`experts` raises."""
        experts = self.experts(name)
        ids = torch.stack([torch.cat(layer) for layer in self.ids], 1)
        return Trace(name, experts, ids.numpy().astype(np.uint16)[:, None])


_players: list[Player] = []
_recorders: list[Recorder] = []


@contextmanager
def playing(trace: Trace) -> Iterator[Player]:
    """Context in which models that are opened with ``--op route=played`` play this trace."""
    player = Player(trace)
    _players.append(player)
    try:
        yield player
    finally:
        _players.remove(player)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Context in which one model that is opened with ``--op route=recorded`` is recorded."""
    recorder = Recorder()
    _recorders.append(recorder)
    try:
        yield recorder
    finally:
        _recorders.remove(recorder)


def can_play(arguments: RouteArguments) -> Verdict:
    return _players[-1].verdict(arguments) if _players else _no_block("playing")


def can_record(arguments: RouteArguments) -> Verdict:
    return _recorders[-1].verdict(arguments) if _recorders else _no_block("recording")


def played(arguments: RouteArguments, x: torch.Tensor) -> Chosen:
    """See ``playing``."""
    _, weights = usual(arguments, x)
    return _players[-1].ids(arguments, x.shape[0]), weights


def recorded(arguments: RouteArguments, x: torch.Tensor) -> Chosen:
    """See ``recording``."""
    ids, weights = usual(arguments, x)
    _recorders[-1].keep(arguments, ids)
    return ids, weights


def _no_block(name: str) -> Verdict:
    return Verdict(False, f"no block 'with {name}(...)' is open")
