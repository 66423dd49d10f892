"""``diag tune``: applies the advice to the run it was given for, and measures what it promised."""
