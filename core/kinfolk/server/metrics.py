"""``GET /metrics``: counters of the service and the engine, in Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from kinfolk.server.service import Service

_TOKENS: Final = {
    "prompt": "prompt tokens of finished requests",
    "cached": "prompt tokens restored from a checkpoint",
    "generated": "generated tokens",
    "reasoning": "generated tokens of reasoning",
    "drafted": "drafted tokens",
    "accepted": "drafted tokens that were accepted",
}


class ServiceCollector(Collector):
    """Reads the counters of the service and the engine at each scrape."""

    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterator[Metric]:
        finished = CounterMetricFamily("kinfolk_answers", "finished answers", labels=["reason"])
        for reason, count in sorted(self._service.finished.items()):
            finished.add_metric([reason], count)
        yield finished
        for kind, text in _TOKENS.items():
            yield CounterMetricFamily(
                f"kinfolk_{kind}_tokens", text, value=self._service.tokens[kind]
            )
        yield GaugeMetricFamily(
            "kinfolk_in_flight", "running and queued answers", value=self._service.in_flight
        )
        for name, value in sorted(self._service.runtime.engine.stats().items()):
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield GaugeMetricFamily(f"kinfolk_engine_{name}", f"engine: {name}", value=value)


def metrics_router(service: Service) -> APIRouter:
    # Not the global registry: a process may run several servers.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(service))
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        headers: dict[str, Any] = {"Content-Type": CONTENT_TYPE_LATEST}
        return Response(generate_latest(registry), headers=headers)

    return router
