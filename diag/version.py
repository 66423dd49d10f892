"""The version of this package."""

from __future__ import annotations

from diag.collectors.version import installed_version


def version() -> str:
    return installed_version() or "0+unknown"  # a source tree that was never installed
