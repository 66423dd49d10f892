"""What an OpenTelemetry collector receives is what Prometheus would scrape."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from diag.errors import DiagError
from diag.export import definitions as of
from diag.export.definitions import Kind, Sample
from diag.export.formats import OtlpSender
from diag.export.run_metrics import RunMetrics
from tests.export.runs import NOW_NS, written


@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and the bodies that it has got."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def points(body: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    request = ExportMetricsServiceRequest.FromString(body)
    found = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        data = metric.sum if metric.HasField("sum") else metric.gauge
        for point in data.data_points:
            labels = frozenset((pair.key, pair.value.string_value) for pair in point.attributes)
            found[metric.name, labels] = point.as_double if point.HasField("as_double") else float(point.as_int)
    return found


def test_every_sample_arrives(tmp_path: Path) -> None:
    samples = RunMetrics(written(tmp_path / "r", steps=4).root).read(NOW_NS)
    with collector() as (url, bodies):
        sender = OtlpSender("r", url)
        sender.send(samples)
        sender.send(samples)
        sender.close()
    wanted = {(s.metric.name.removesuffix("_total"), frozenset(s.labels.items())): float(s.value) for s in samples}
    assert [points(body) for body in bodies] == [wanted, wanted]
    (metrics,) = [
        r.scope_metrics[0].metrics for r in ExportMetricsServiceRequest.FromString(bodies[0]).resource_metrics
    ]
    by_name = {metric.name: metric for metric in metrics}
    for metric in {sample.metric for sample in samples}:
        sent = by_name[metric.name.removesuffix("_total")]
        assert (sent.description, sent.unit) == (metric.help, metric.unit.value)
        assert sent.HasField("sum") == (metric.kind is Kind.COUNTER)
        assert metric.kind is Kind.GAUGE or sent.sum.is_monotonic


def test_no_rank_is_lost_in_a_large_job() -> None:
    """The SDK folds all series beyond 2,000 of a metric into one, unless it is told otherwise."""
    samples = [Sample(of.STEPS, {of.RANK: str(rank)}, rank) for rank in range(5000)]
    with collector() as (url, bodies):
        OtlpSender("r", url).send(samples)
    assert len(points(bodies[0])) == 5000


def test_a_collector_that_refuses() -> None:
    with collector(status=400) as (url, _), pytest.raises(DiagError, match="did not accept") as raised:
        OtlpSender("r", url).send([Sample(of.RANKS, {}, 1)])
    assert "--endpoint" in raised.value.hint
