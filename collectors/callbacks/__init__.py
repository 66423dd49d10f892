"""Callbacks with which a framework begins and ends a recording. Each module needs its framework; none is imported by
other modules."""
