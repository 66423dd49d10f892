"""The life of a run: its step time over time, when that changed, and because of what."""
