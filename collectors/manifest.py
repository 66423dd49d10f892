"""manifest.json: written by the launcher, completed by rank 0, closed by the launcher. Standard library only."""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, fields
from typing import Any

from .files import create_file, encode, rewrite_file
from .launchers import scheduled_as
from .layout import RunLayout
from .reading import read_object
from .records import SHARED, Manifest
from .version import version


def read_fields(layout: RunLayout) -> dict[str, Any]:
    """The fields of manifest.json; empty where there is none or it does not parse."""
    return read_object(layout.manifest, layout.root)


def make_manifest(layout: RunLayout, **values: Any) -> bool:
    """Creates manifest.json with these fields, secrets masked. Returns False and changes nothing if it exists. Raises
    OSError."""
    return create_file(layout.manifest, encode(_new() | _written_by() | _known(values)), private=True)


def update_manifest(layout: RunLayout, **changes: Any) -> None:
    """Merges fields into manifest.json, secrets masked, dictionaries key by key, and replaces the file. Raises OSError.

    Raises TypeError for unknown names, a mistake of the caller.
    """
    content = _new() | (read_fields(layout) or _written_by())
    for name, value in _known(changes).items():
        if isinstance(value, dict) and isinstance(content.get(name), dict):
            content[name] = {**content[name], **value}
        else:
            content[name] = value
    rewrite_file(layout.manifest, encode(content), private=True)


def _new() -> dict[str, Any]:
    new = Manifest(run_id=uuid.uuid4().hex[:12], created_unix_ns=time.time_ns(), scheduled=scheduled_as())
    return asdict(new)


def training_of(layout: RunLayout) -> str:
    """The id of the training that a run is a part of: of its first run, also where this one goes on with another's
    checkpoint. "" where no manifest says it."""
    about = read_fields(layout)
    return next((value for name in ("training", "run_id") if isinstance(value := about.get(name), str) and value), "")


def _written_by() -> dict[str, Any]:
    return {"versions": {"diag": version()}}


def _known(values: dict[str, Any]) -> dict[str, Any]:
    from .masking import without_secrets  # not in each process that imports torch

    unknown = set(values) - {f.name for f in fields(Manifest)}
    if unknown:
        raise TypeError(f"not in the manifest: {', '.join(sorted(unknown))}")
    return {name: without_secrets(value, name, SHARED) for name, value in values.items()}
