"""Reads text logs of any mixture and joins who printed what: see ``read_logs``."""

from .read import read_logs as read_logs
