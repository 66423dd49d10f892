"""diag finds out why a distributed PyTorch training run is slow or stuck.

Importing this package costs nothing: torch, polars and streamlit are imported by the parts that need them, because
training processes import ``diag.collectors`` and must not pay for the analyser.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diag.api import open_run as open_run

try:
    __version__ = version("diag")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    """``diag.open_run(path)`` for notebooks, imported when it is first used."""
    if name == "open_run":
        from diag.api import open_run

        return open_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
