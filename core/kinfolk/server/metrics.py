"""``GET /metrics``: counters of the service and the engine, in Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from kinfolk.sched.draft_counts import DraftCounts
from kinfolk.server.service import Service

_TOKENS: Final = {
    "prompt": "prompt tokens of finished requests",
    "cached": "prompt tokens restored from a checkpoint",
    "generated": "generated tokens",
    "reasoning": "generated tokens of reasoning",
}


def _draft_metrics(drafts: DraftCounts) -> Iterator[Metric]:
    """Counts of drafts. Position 0 is that of the first drafted token."""
    for name, text, value in (
        ("draft_steps", "steps that verified drafted tokens", drafts.steps),
        ("drafted_tokens", "drafted tokens", drafts.drafted),
        ("draft_depth", "drafted tokens that could have been accepted", drafts.depth),
        ("accepted_tokens", "drafted tokens that were accepted", drafts.accepted),
    ):
        yield CounterMetricFamily(f"kinfolk_{name}", text, value=value)
    for name, text, counts in (
        ("reached", "drafts of which all before a position was accepted", drafts.reached),
        ("accepted", "drafted tokens that were accepted, by position", drafts.kept),
    ):
        family = CounterMetricFamily(f"kinfolk_draft_{name}", text, labels=["position"])
        for position, count in enumerate(counts):
            family.add_metric([str(position)], count)
        yield family


def _compression_metrics(counts: Mapping[str, int]) -> Iterator[Metric]:
    """Counts of compressed prompts, and of those that were read in full although they need not
    be."""
    for name, text in (
        ("prompts", "prompts that were compressed"),
        ("original_tokens", "tokens of compressed prompts before"),
        ("compressed_tokens", "tokens of compressed prompts after"),
        ("failures", "prompts that were read in full as their compression failed"),
    ):
        value = counts.get(name, 0)
        yield CounterMetricFamily(f"kinfolk_prefill_compression_{name}", text, value=value)
    family = CounterMetricFamily(
        "kinfolk_prefill_compression_skipped", "prompts that were read in full", labels=["reason"]
    )
    for name, count in sorted(counts.items()):
        if name.startswith("skipped_"):
            family.add_metric([name.removeprefix("skipped_")], count)
    yield family


class ServiceCollector(Collector):
    """Reads the counters of the service at each scrape, and those of the engine from ``engine``."""

    def __init__(self, service: Service):
        self._service = service
        self.engine: Mapping[str, int] = {}

    def collect(self) -> Iterator[Metric]:
        finished = CounterMetricFamily("kinfolk_answers", "finished answers", labels=["reason"])
        for reason, count in sorted(self._service.finished.items()):
            finished.add_metric([reason], count)
        yield finished
        for kind, text in _TOKENS.items():
            yield CounterMetricFamily(
                f"kinfolk_{kind}_tokens", text, value=self._service.tokens[kind]
            )
        yield from _draft_metrics(self._service.drafts)
        if self._service.compressor is not None:
            yield from _compression_metrics(self._service.compressor.counts())
        yield GaugeMetricFamily(
            "kinfolk_in_flight", "running and queued answers", value=self._service.in_flight
        )
        for name, value in sorted(self.engine.items()):
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield GaugeMetricFamily(f"kinfolk_engine_{name}", f"engine: {name}", value=value)


def metrics_router(service: Service) -> APIRouter:
    # Not the global registry: a process may run several servers.
    registry = CollectorRegistry(auto_describe=False)
    collector = ServiceCollector(service)
    registry.register(collector)
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        # In a thread: an engine in another process answers when it has the time.
        collector.engine = await run_in_threadpool(service.runtime.engine.stats)
        headers: dict[str, Any] = {"Content-Type": CONTENT_TYPE_LATEST}
        return Response(generate_latest(registry), headers=headers)

    return router
