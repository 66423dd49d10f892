"""manifest.json: written by the launcher, completed by rank 0, closed by the launcher. Standard library only."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, fields
from typing import Any

from .files import encode, replace_file
from .layout import RunLayout
from .records import Manifest


def read_fields(layout: RunLayout) -> dict[str, Any]:
    """What manifest.json holds; empty where there is none or it does not parse."""
    try:
        content = json.loads(layout.manifest.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def update_manifest(layout: RunLayout, **changes: Any) -> None:
    """Merges fields into manifest.json, dictionaries key by key, and replaces the file. Raises OSError.

    Unknown names are a mistake of the caller: TypeError.
    """
    unknown = set(changes) - {f.name for f in fields(Manifest)}
    if unknown:
        raise TypeError(f"not in the manifest: {', '.join(sorted(unknown))}")
    content = asdict(Manifest(run_id=uuid.uuid4().hex[:12], created_unix_ns=time.time_ns())) | read_fields(layout)
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(content.get(name), dict):
            content[name] = {**content[name], **value}
        else:
            content[name] = value
    replace_file(layout.manifest, encode(content))
