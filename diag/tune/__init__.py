"""``diag tune``: applies the advice to its run, and measures the predicted gain."""
