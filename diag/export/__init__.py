"""A run's numbers for other systems: Prometheus, OpenTelemetry, JSON lines, TensorBoard and W&B."""
