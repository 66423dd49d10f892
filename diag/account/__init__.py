"""From tables to an exact account of every step: where each rank's time went, and which rank the others waited for."""
