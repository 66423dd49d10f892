"""Reads text logs of any mixture and joins who said what: see ``read_logs``."""

from .read import read_logs

__all__ = ["read_logs"]
