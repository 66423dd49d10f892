"""Samples and steps in the formats of other systems: Prometheus, OpenTelemetry, JSON lines, W&B, TensorBoard."""

from __future__ import annotations

import json
import os
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from diag.collectors.layout import SCHEMA_VERSION
from diag.collectors.text import visible_lines
from diag.errors import DiagError, install_command, not_installed
from diag.export.definitions import METRICS, Kind, Metric, Sample
from diag.export.finished_steps import StepCurves
from diag.export.policy import EXPORT_LIMITS
from diag.export.run_metrics import RunMetrics
from diag.serve.guard import Guard, Request, listening, resolved, with_headers

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from opentelemetry.metrics import CallbackOptions, Observation

_TOTAL = "_total"
_PATIENCE_S = 30  # with a silent connection


def to_text(samples: Iterable[Sample]) -> str:
    """Prometheus' text format: each metric with its HELP and TYPE, labels escaped."""
    registry = CollectorRegistry()
    registry.register(_Fixed(samples))
    return generate_latest(registry).decode()


def families(samples: Iterable[Sample]) -> Iterator[Family]:
    """The samples as metric families, in the order of the definitions."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.metric.name, []).append(sample)
    for metric in METRICS:
        samples_of_metric = by_name.get(metric.name)
        if not samples_of_metric:
            continue
        # The library appends the suffix of a counter itself.
        name = metric.name.removesuffix(_TOTAL) if metric.kind is Kind.COUNTER else metric.name
        family = Family(name, metric.help, metric.kind.value)
        for _, labels, value in samples_of_metric:
            # Prometheus accepts any text as a label, but this output may be printed in a terminal.
            family.add_sample(metric.name, {key: visible_lines(text) for key, text in dict(labels).items()}, value)
        yield family


@contextmanager
def serving(
    metrics: RunMetrics, host: str, port: int, *, token: str | None = None, allowed_hosts: Iterable[str] = ()
) -> Iterator[tuple[int, threading.Thread]]:
    """Serves /metrics from a thread, on the port that is given, until the block ends; every scrape reads the new
    records of the run. ``token``: requests without it are refused. DiagError if the port is in use or the host is
    invalid."""
    registry = CollectorRegistry()
    registry.register(_Live(metrics))
    family, address = resolved(host, port)
    guard = listening(host, address[0], allowed_hosts, token, browser=False)
    try:
        server = _Server(address, family, _guarded(make_wsgi_app(registry), guard))
    except OSError as error:
        raise DiagError(
            f"cannot listen on port {port} of {host}: {error.strerror or error}", hint="choose another with --port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, thread
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _guarded(app: WSGIApplication, guard: Guard) -> WSGIApplication:
    def guarded(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        answer = guard.answer(_request(environ))
        if answer is not None:
            start(f"{answer.status.value} {answer.status.phrase}", list(answer.headers))
            return [answer.body]

        def start_with_headers(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start(status, with_headers(headers), *error)

        return app(environ, start_with_headers)

    return guarded


def _request(environ: WSGIEnvironment) -> Request:
    headers = [(name[5:].replace("_", "-").lower(), value) for name, value in environ.items() if name[:5] == "HTTP_"]
    return Request(
        environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/"), environ.get("QUERY_STRING", ""), tuple(headers)
    )


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: an address may contain the token, and the terminal is the user's."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], family: int, app: WSGIApplication) -> None:
        self.address_family = family
        super().__init__(address, _Handler)
        self.set_app(app)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores scrapers that disconnect or time out."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        """Skips the reverse DNS lookup of the address, which may block without a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Fixed(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = list(samples)

    def collect(self) -> Iterator[Family]:
        yield from families(self._samples)


class _Live(Collector):
    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics = metrics
        self._reading = threading.Lock()  # two concurrent scrapes must not both count the new records

    def describe(self) -> Iterator[Family]:
        """Yields nothing, so that registering does not read the run."""
        yield from ()

    def collect(self) -> Iterator[Family]:
        with self._reading:
            samples = self._metrics.read()
        yield from families(samples)


# -- OpenTelemetry -----------------------------------------------------------------------------------------------------


# Exports through OpenTelemetry's SDK to a collector, by OTLP over HTTP. Needs the extra `otel`.

DEFAULT_ENDPOINT = "http://localhost:4318/v1/metrics"


class OtlpSender:
    """``send`` exports samples at once. ``endpoint`` None: from OTEL_EXPORTER_OTLP_*, else the SDK's default."""

    def __init__(self, run: str, endpoint: str | None = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
            from opentelemetry.sdk.metrics.export import CardinalityLimits, InMemoryMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise not_installed("OpenTelemetry's SDK", "otel") from error
        self._samples: dict[str, list[Sample]] = {}
        # Read on demand: nothing is sent twice, and failures are reported here.
        limits: CardinalityLimits = {
            ObservableCounter: EXPORT_LIMITS.most_series,
            ObservableGauge: EXPORT_LIMITS.most_series,
        }
        self._reader = InMemoryMetricReader(cardinality_limits=limits)
        resource = Resource.create({"service.name": "diag", "service.instance.id": run})
        self._provider = MeterProvider([self._reader], resource)
        self._exporter = OTLPMetricExporter(endpoint=endpoint)
        meter = self._provider.get_meter("diag")
        for metric in METRICS:
            create = meter.create_observable_counter if metric.kind is Kind.COUNTER else meter.create_observable_gauge
            create(metric.name.removesuffix("_total"), [self._callback(metric)], metric.unit.value, metric.help)

    def send(self, samples: Iterable[Sample]) -> None:
        """Exports the samples. DiagError if the collector does not accept them."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._samples = {}
        for sample in samples:
            self._samples.setdefault(sample.metric.name, []).append(sample)
        data = self._reader.get_metrics_data()
        if data is None or self._exporter.export(data) is not MetricExportResult.SUCCESS:
            raise DiagError(
                "the OpenTelemetry collector did not accept the metrics",
                hint=f"is one listening? --endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT; else {DEFAULT_ENDPOINT}",
            )

    def close(self) -> None:
        self._exporter.shutdown()
        self._provider.shutdown()

    def _callback(self, metric: Metric) -> Callable[[CallbackOptions], Sequence[Observation]]:
        from opentelemetry.metrics import Observation

        def observed(_: CallbackOptions) -> list[Observation]:
            return [Observation(value, dict(labels)) for _, labels, value in self._samples.get(metric.name, ())]

        return observed


# -- jsonl -------------------------------------------------------------------------------------------------------------
#
# Samples as JSON lines: one object per sample; all samples of one reading have the same time.


def to_lines(samples: Iterable[Sample], now_ns: int) -> str:
    """The samples as JSON lines; each ends with a line feed."""
    return "".join(
        json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "time_unix_ns": now_ns,
                "name": metric.name,
                "kind": metric.kind,
                "unit": metric.unit,
                "labels": dict(labels),
                "value": value,
            }
        )
        + "\n"
        for metric, labels, value in samples
    )


# -- wandb -------------------------------------------------------------------------------------------------------------
#
# A run's steps as a run of Weights & Biases, if its client is installed. Offline unless WANDB_MODE is set; `wandb sync`
# uploads it.

# W&B asks git about the current folder, and git runs programs that the folder's own configuration names.
_SETTINGS = {"disable_git": True}


def write_run(steps: Iterable[StepCurves], name: str, folder: Path) -> int:
    """Writes a W&B run into the folder; returns the number of steps. DiagError if wandb is missing."""
    try:
        import wandb
    except ImportError as error:
        raise DiagError("wandb is not installed", hint=install_command("wandb")) from error
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    mode = os.environ.get("WANDB_MODE", "offline")
    with wandb.init(project="diag", name=name, dir=str(folder), mode=mode, settings=dict(_SETTINGS)) as run:
        for step in steps:
            run.log(step.values, step=step.step)
            written += 1
    return written


# -- tensorboard -------------------------------------------------------------------------------------------------------
#
# A run's steps as TensorBoard's event files, if TensorBoard is installed.


def write_events(steps: Iterable[StepCurves], folder: Path) -> int:
    """Writes event files into the folder; returns the number of steps. DiagError if TensorBoard is missing."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise DiagError("TensorBoard is not installed", hint=install_command("tensorboard")) from error
    written = 0
    writer = EventFileWriter(str(folder))
    try:
        for step in steps:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in step.values.items()]
            at = step.end_unix_s or time.time()
            writer.add_event(Event(wall_time=at, step=step.step, summary=Summary(value=values)))
            written += 1
    finally:
        writer.close()
    return written
