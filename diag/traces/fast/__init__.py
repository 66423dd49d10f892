"""Kineto traces of the profiler's usual layout, decoded from columns of bytes."""
