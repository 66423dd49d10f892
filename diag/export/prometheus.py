"""Samples in Prometheus' text format, written once or served at /metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from diag.errors import DiagError
from diag.export.definitions import METRICS, Kind, Sample
from diag.export.run_metrics import RunMetrics

_TOTAL = "_total"


def to_text(samples: Iterable[Sample]) -> str:
    """The exposition: each metric with its HELP and TYPE, labels escaped."""
    registry = CollectorRegistry()
    registry.register(_Fixed(samples))
    return generate_latest(registry).decode()


def families(samples: Iterable[Sample]) -> Iterator[Family]:
    """By metric, in the order of the definitions."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.metric.name, []).append(sample)
    for metric in METRICS:
        own = by_name.get(metric.name)
        if not own:
            continue
        # The library puts the ending of a counter on itself.
        name = metric.name.removesuffix(_TOTAL) if metric.kind is Kind.COUNTER else metric.name
        family = Family(name, metric.help, metric.kind.value)
        for _, labels, value in own:
            family.add_sample(metric.name, dict(labels), value)
        yield family


def serve(metrics: RunMetrics, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    """Serves /metrics from a thread; every scrape reads what is new in the run. DiagError where the port is taken."""
    registry = CollectorRegistry()
    registry.register(_Live(metrics))
    try:
        return start_http_server(port, host, registry)
    except OSError as error:
        raise DiagError(
            f"port {port} of {host} cannot be listened on: {error.strerror or error}", hint="choose another with --port"
        ) from error


class _Fixed(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = list(samples)

    def collect(self) -> Iterator[Family]:
        yield from families(self._samples)


class _Live(Collector):
    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics = metrics
        self._reading = threading.Lock()  # two scrapes at once must not both count what is new

    def describe(self) -> Iterator[Family]:
        """Nothing: registering it need not read the run."""
        yield from ()

    def collect(self) -> Iterator[Family]:
        with self._reading:
            samples = self._metrics.read()
        yield from families(samples)
