"""What to change, what it gains, what it costs: every applicable knob is replayed, vetoed by memory, and ordered."""
