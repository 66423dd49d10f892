"""Budgets of a run: what may cost how much at most, and whether a run keeps to it."""
