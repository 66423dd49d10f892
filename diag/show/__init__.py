"""Renderers of a result: text and JSON. They compute nothing."""
