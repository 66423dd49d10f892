"""Samples through OpenTelemetry's own SDK to a collector, by OTLP over HTTP. Needs the extra `otel`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from diag.errors import DiagError
from diag.export.definitions import METRICS, Kind, Metric, Sample

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

_MOST_SERIES = 1_000_000  # of an instrument; the SDK's own limit is 2,000, and a run can have 24,576 ranks
DEFAULT_ENDPOINT = "http://localhost:4318/v1/metrics"


class OtlpSender:
    """``send`` exports samples at once; ``endpoint`` None: what OTEL_EXPORTER_OTLP_* say, else the SDK's default."""

    def __init__(self, run: str, endpoint: str | None = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
            from opentelemetry.sdk.metrics.export import CardinalityLimits, InMemoryMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise DiagError("OpenTelemetry's SDK is not installed", hint="pip install 'diag[otel]'") from error
        self._samples: dict[str, list[Sample]] = {}
        # Read when we say so: nothing is sent twice, and a failure is known here.
        limits: CardinalityLimits = {ObservableCounter: _MOST_SERIES, ObservableGauge: _MOST_SERIES}
        self._reader = InMemoryMetricReader(cardinality_limits=limits)
        resource = Resource.create({"service.name": "diag", "service.instance.id": run})
        self._provider = MeterProvider([self._reader], resource)
        self._exporter = OTLPMetricExporter(endpoint=endpoint)
        meter = self._provider.get_meter("diag")
        for metric in METRICS:
            create = meter.create_observable_counter if metric.kind is Kind.COUNTER else meter.create_observable_gauge
            create(metric.name.removesuffix("_total"), [self._callback(metric)], metric.unit.value, metric.help)

    def send(self, samples: Iterable[Sample]) -> None:
        """DiagError where the collector does not take them."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._samples = {}
        for sample in samples:
            self._samples.setdefault(sample.metric.name, []).append(sample)
        data = self._reader.get_metrics_data()
        if data is None or self._exporter.export(data) is not MetricExportResult.SUCCESS:
            raise DiagError(
                "the OpenTelemetry collector did not take the metrics",
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
