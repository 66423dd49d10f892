"""The version of diag that records and analyses. Standard library only."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution


def installed_version() -> str | None:
    """As it was built, such as ``0.1.0+20261128043330.g0dbc62fc1a2b``; ``0.1.0+editable`` where the code is a working
    tree, which may have changed since. None if diag is not installed and only on the path."""
    try:
        found = distribution("diag")
    except PackageNotFoundError:
        return None
    try:
        editable = json.loads(found.read_text("direct_url.json") or "{}")["dir_info"]["editable"]
    except (ValueError, KeyError, TypeError):
        editable = False
    return f"{found.version.partition('+')[0]}+editable" if editable is True else found.version
