"""The version of this package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _of_package


def version() -> str:
    try:
        return _of_package("diag")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
