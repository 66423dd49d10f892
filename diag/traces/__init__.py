"""Traces of torch.profiler and of others in its format: reads them into tables, and keeps those in a cache."""
