"""Budgets of a run: limits on its costs, and the check whether a run exceeds them."""
