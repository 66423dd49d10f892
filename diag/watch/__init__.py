"""Starts trainings, watches them while they run, asks for traces, and says how they ended."""
