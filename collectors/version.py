"""The version of diag that records and analyses. Standard library only."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution

# As in pyproject.toml, which a folder of the recorder in an image does not have.
RELEASE = "0.1.0"


def version() -> str:
    """As it was built, such as ``0.1.0+20261128043330.g0dbc62fc1a2b``; ``0.1.0+editable`` where the code is a working
    tree, which may have changed since; ``0.1.0+folder`` where diag is not installed but only on the path, as in a pod
    that mounts the recorder."""
    try:
        found = distribution("diag")
    except PackageNotFoundError:
        return f"{RELEASE}+folder"
    try:
        editable = json.loads(found.read_text("direct_url.json") or "{}")["dir_info"]["editable"]
    except (ValueError, KeyError, TypeError):
        editable = False
    return f"{found.version.partition('+')[0]}+editable" if editable is True else found.version
