"""Starts trainings, watches them while they run, requests traces, and reports how they ended."""
