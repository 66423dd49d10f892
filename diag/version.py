"""The version of this package."""

from __future__ import annotations

from diag.collectors.version import version as version
