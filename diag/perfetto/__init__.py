"""Opens a trace, or an excerpt of one, in Perfetto."""
