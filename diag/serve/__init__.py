"""Serves the dashboard and metrics on this machine: the process, who may ask it, and how it is stopped."""
