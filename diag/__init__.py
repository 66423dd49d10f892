"""diag finds out why a distributed PyTorch training run is slow or stuck.

Importing this package costs nothing: torch, polars and streamlit are imported by the parts that need them, because
training processes import ``diag.collectors`` and must not pay for the analyser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diag.api import open_run as open_run

    __version__: str


def __getattr__(name: str) -> Any:
    """``diag.open_run(path)`` for notebooks and ``diag.__version__``, found when they are first used."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("diag")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    if name == "open_run":
        from diag.api import open_run

        return open_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
