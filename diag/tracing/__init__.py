"""Profiler windows of a running job: asked for by somebody, or because something changed for the worse."""
