"""A run directory: reads what the collectors recorded, and lists and summarises runs."""
