"""Exports a run's metrics to other systems: Prometheus, OpenTelemetry, JSON lines, TensorBoard and W&B."""
