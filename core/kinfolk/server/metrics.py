"""``GET /metrics``: counters in the text format of Prometheus."""

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
    "cached": "prompt tokens that came from a checkpoint",
    "generated": "tokens generated",
    "reasoning": "generated tokens before the answer proper",
    "drafted": "tokens drafted",
    "accepted": "drafted tokens that were right",
}


class ServiceCollector(Collector):
    """Reads the plain numbers of the service and the engine when somebody asks."""

    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterator[Metric]:
        finished = CounterMetricFamily(
            "kinfolk_answers", "answers that have ended", labels=["reason"]
        )
        for reason, count in sorted(self._service.finished.items()):
            finished.add_metric([reason], count)
        yield finished
        for kind, text in _TOKENS.items():
            yield CounterMetricFamily(
                f"kinfolk_{kind}_tokens", text, value=self._service.tokens[kind]
            )
        yield GaugeMetricFamily(
            "kinfolk_in_flight", "answers running or waiting", value=self._service.in_flight
        )
        for name, value in sorted(self._service.runtime.engine.stats().items()):
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield GaugeMetricFamily(f"kinfolk_engine_{name}", f"engine: {name}", value=value)


def metrics_router(service: Service) -> APIRouter:
    # A registry of its own: the process may hold several servers.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(service))
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        headers: dict[str, Any] = {"Content-Type": CONTENT_TYPE_LATEST}
        return Response(generate_latest(registry), headers=headers)

    return router
