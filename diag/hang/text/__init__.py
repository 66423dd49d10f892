"""Reads text logs in any mixture and relates their lines to processes: see ``read_logs``."""

from .read import read_logs as read_logs
