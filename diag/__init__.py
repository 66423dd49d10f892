"""diag finds out why a distributed PyTorch training run is slow or stuck.

Importing this package costs nothing: torch, polars and streamlit are imported by the parts that need them, because
training processes import ``diag.collectors`` and must not pay for the analyser.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("diag")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
