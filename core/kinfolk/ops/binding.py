"""Binds ops to back ends when a model is built.

No fallback is silent: each choice, and every refusal with its reason, is kept in ``decisions`` for
``kinfolk doctor`` and logged at its first occurrence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from kinfolk.descriptors import REFERENCE, OpBackend, resolve
from kinfolk.door import ask, behind, cause
from kinfolk.errors import PluginError, SettingsError, UnsupportedModelError

if TYPE_CHECKING:
    from kinfolk_kernels.op import Op

log = logging.getLogger(__name__)

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Implementation:
    """The functions of a back end: ``run(arguments, *operands)`` and ``supports(arguments)``."""

    run: Callable[..., Any]
    supports: Callable[..., Any] | None


class NotPrecompilableError(Exception):
    """An op runs on a back end whose kernels cannot be compiled with launches suppressed."""


ITS_PARTS = "its parts"
"""In place of the back end of a fused op that every back end has refused."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The back end of an op, or :data:`ITS_PARTS`, and the name and reason of each back end that
    refused before it."""

    op: str
    backend: str
    refused: tuple[tuple[str, str], ...]


class Ops:
    """Binds the ops of one model to the back ends registered for them.

    ``choose`` maps an op to the name of the back end that must run it. For other ops, back ends are
    asked if they are for the type of ``device`` that the model is on, or for any. Raises
    :class:`SettingsError` for a chosen name that no back end of the op has.
    """

    def __init__(
        self,
        backends: Iterable[OpBackend],
        choose: Mapping[str, str] | None = None,
        device: str = "cpu",
    ) -> None:
        self.decisions: dict[tuple[str, str], Decision] = {}
        """The bound back ends, by op and name."""
        self.broken: dict[tuple[str, str], str] = {}
        """Back ends of plugins that failed and are not asked again, with the reason."""
        self.launches_suppressed = False
        """Whether a kernel warmup is running; results of ops are undefined then."""
        self._backends = _by_op(backends)
        self._chosen = frozenset(choose or {})
        for op, name in (choose or {}).items():
            self._backends[op] = [self._of_name(op, name)]
        for op in self._backends.keys() - (choose or {}).keys():
            self._backends[op] = [b for b in self._backends[op] if b.device in ("", device)]
        self._loaded: dict[tuple[str, str], _Implementation | str] = {}
        self._bound: dict[tuple[str, str], OpBackend] = {}

    def backends(self, op: str) -> tuple[str, ...]:
        """Names of the op's back ends, in the order in which they are asked."""
        return tuple(backend.name for backend in self._backends.get(op, ()))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of ops that have back ends or were bound."""
        return tuple(sorted(self._backends.keys() | {op for op, _ in self._bound}))

    # -- binding ------------------------------------------------------------------------------

    def bind(self, op: Op[A, P, R], arguments: A) -> Callable[P, R]:
        """The op with its arguments and back end fixed; a call takes only the operands.

        Back ends are asked by priority whether they support ``arguments``; the op's own reference
        comes last and supports all. Raises :class:`UnsupportedModelError` with the reason if a back
        end chosen by name does not support them.
        """
        return partial(self._select(op, arguments, self._offered(op))[1], arguments)

    def bind_fused(
        self, op: Op[A, P, R], arguments: A, parts: Iterable[tuple[Op[Any, ..., Any], Any]]
    ) -> Callable[P, R] | None:
        """``op``, which does what ``parts`` do one after the other: ops with their arguments.

        If nobody chose a back end for it, it is bound to the one with the name of the back end that
        runs all parts, so that a back end of a part is never bypassed; ``None`` if there is none.
        """
        if op.name in self._chosen:
            return self.bind(op, arguments)
        names = {self._select(part, of, self._offered(part))[0].name for part, of in parts}
        same = [b for b in self._offered(op) if {b.name} == names and b.name != REFERENCE]
        if not same:
            return None
        backend, run, refused = self._ask(op, arguments, same)
        self._note(Decision(op.name, ITS_PARTS if backend is None else backend.name, refused))
        return None if backend is None else partial(run, arguments)

    def uncapturable(self) -> dict[str, str]:
        """Bound ops that no CUDA graph can hold, with the reason."""
        return {
            f"op {op}": f"its back end {name} cannot be captured in a CUDA graph"
            for (op, name), backend in sorted(self._bound.items())
            if not backend.capturable
        }

    @contextmanager
    def precompiling(self) -> Iterator[None]:
        """Context in which launches are suppressed, and their kernels compile in parallel.

        Raises :class:`NotPrecompilableError` if a bound op runs on a back end that does not allow
        this.
        """
        from kinfolk_kernels.compiling import side_by_side

        for (op, name), backend in sorted(self._bound.items()):
            if not backend.precompilable:
                raise NotPrecompilableError(f"op {op} runs on {name}")
        self.launches_suppressed = True
        try:
            with side_by_side():
                yield
        finally:
            self.launches_suppressed = False

    def _of_name(self, op: str, name: str) -> OpBackend:
        offered = self._backends.get(op, [])
        for backend in offered:
            if backend.name == name:
                return backend
        known = ", ".join(b.name for b in offered) or f"none; ops: {sorted(self._backends)}"
        raise SettingsError(f"op {op!r} has no back end {name!r} (installed: {known})")

    def _refusal(
        self, backend: OpBackend, implementation: _Implementation, arguments: object
    ) -> str | None:
        """The reason why a back end does not support the arguments; ``None`` if it does."""
        if implementation.supports is None:
            return None
        try:
            verdict = implementation.supports(arguments)
        except PluginError as error:
            return self._drop(backend, str(error))
        if verdict:
            return None
        return getattr(verdict, "reason", "") or "gave no reason"

    def _offered(self, op: Op[Any, ..., Any]) -> Sequence[OpBackend]:
        return self._backends.get(op.name) or (_reference(op.name),)

    def _select(
        self, op: Op[A, P, R], arguments: A, backends: Sequence[OpBackend]
    ) -> tuple[OpBackend, Callable[..., Any]]:
        """The first of ``backends`` that supports the arguments, and its function."""
        backend, run, refused = self._ask(op, arguments, backends)
        if backend is None:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
            raise UnsupportedModelError(f"no back end can run the op {op.name!r}: {reasons}")
        self._note(Decision(op.name, backend.name, refused))
        return backend, run

    def _ask(
        self, op: Op[A, P, R], arguments: A, backends: Sequence[OpBackend]
    ) -> tuple[OpBackend | None, Callable[..., Any], tuple[tuple[str, str], ...]]:
        """The first of ``backends`` that supports the arguments, its function, and who refused."""
        refused: list[tuple[str, str]] = []
        for backend in backends:
            if backend.name == REFERENCE:
                implementation: _Implementation | str = _Implementation(op.reference, None)
                backend = replace(backend, capturable=op.capturable, precompilable=op.capturable)
            else:
                implementation = self._load(backend, op)
            if isinstance(implementation, str):
                refused.append((backend.name, implementation))
                continue
            reason = self._refusal(backend, implementation, arguments)
            if reason is None:
                self._bound[op.name, backend.name] = backend
                return backend, implementation.run, tuple(refused)
            refused.append((backend.name, reason))
        return None, op.reference, tuple(refused)

    # -- back ends -----------------------------------------------------------------------------

    def _load(self, backend: OpBackend, op: Op[Any, Any, Any]) -> _Implementation | str:
        """The back end's functions, or the reason why they cannot be used."""
        key = (backend.op, backend.name)
        if key not in self._loaded:
            try:
                self._loaded[key] = _functions(backend, op)
            except PluginError as error:
                return self._drop(backend, str(error))
            except Exception as error:
                return self._drop(backend, f"cannot be loaded: {cause(error)}")
        return self._loaded[key]

    def _drop(self, backend: OpBackend, reason: str) -> str:
        """Stop asking a broken back end, so that others can run the op. Returns the reason."""
        subject = "" if backend.source else f"back end {backend.name} of op {backend.op} "
        log.warning("%s%s; it is not asked again", subject, reason)
        self._loaded[backend.op, backend.name] = reason
        if backend.source:
            self.broken[backend.op, backend.name] = reason
        return reason

    def _note(self, decision: Decision) -> None:
        """Keep the first decision for a back end, and log it."""
        if (decision.op, decision.backend) in self.decisions:
            return
        self.decisions[decision.op, decision.backend] = decision
        why = "".join(f"; {name} refused: {reason}" for name, reason in decision.refused)
        log.info("op %s runs on %s%s", decision.op, decision.backend, why)


def _by_op(backends: Iterable[OpBackend]) -> dict[str, list[OpBackend]]:
    """Back ends of each op, by priority. The op's own reference has priority 0 and supports all
    arguments, so a back end with a negative priority runs only if it is chosen by name."""
    by_op: dict[str, list[OpBackend]] = {}
    for backend in backends:
        by_op.setdefault(backend.op, []).append(backend)
    for op, registered in by_op.items():
        if all(backend.name != REFERENCE for backend in registered):
            registered.append(_reference(op))
        registered.sort(key=lambda backend: (-backend.priority, backend.name == REFERENCE))
    return by_op


def _reference(op: str) -> OpBackend:
    """An op's own reference as a back end; :class:`Op` holds the function."""
    return OpBackend(op, REFERENCE, "kinfolk_kernels.op:Op.reference")


def _functions(backend: OpBackend, op: Op[Any, Any, Any]) -> _Implementation:
    """The functions that a back end references; those of a plugin are guarded."""
    returns = op.reference.__annotations__.get("return") not in (None, "None")

    def load() -> _Implementation:
        supports = resolve(backend.supports) if backend.supports else None
        return _Implementation(resolve(backend.function), supports)

    if not backend.source:  # errors of the core are not attributed to a plugin
        return load()
    who = f"back end {backend.name!r} of op {backend.op!r} of {backend.source}"
    loaded = ask(who, "loading it", load, _no_functions, passing=())
    supports = loaded.supports
    guarded = supports and behind(who, backend.supports, supports, _no_verdict)
    run = behind(who, backend.function, loaded.run, _no_result if returns else None)
    return _Implementation(run, guarded)


def _no_result(value: object) -> str:
    return "is no result" if value is None else ""


def _no_functions(value: object) -> str:
    assert isinstance(value, _Implementation)
    fits = callable(value.run) and (value.supports is None or callable(value.supports))
    return "" if fits else "holds something that cannot be called"


def _no_verdict(value: object) -> str:
    if isinstance(getattr(value, "ok", value), bool):
        return ""
    return "is no kinfolk.descriptors.Verdict"
