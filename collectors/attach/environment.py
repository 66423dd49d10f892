"""The environment that makes a process and its children record themselves. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..settings import RUN_DIR_VARIABLE, SETTINGS_VARIABLE, CollectorSettings, collecting

ATTACH_VARIABLE = "DIAG_ATTACH"  # anything but empty: processes that train shall be recorded
OWNER_VARIABLE = "DIAG_ATTACH_OWNER"  # the process that records; what it starts does not

SITE = Path(__file__).resolve().parent / "site"


def attached(run_dir: Path, settings: CollectorSettings) -> dict[str, str]:
    """What to add to the environment, PYTHONPATH apart: see ``python_path``."""
    return {
        ATTACH_VARIABLE: "1",
        RUN_DIR_VARIABLE: str(run_dir.resolve()),
        SETTINGS_VARIABLE: settings.to_json(),
    }


def python_path(environ: Mapping[str, str] = os.environ) -> str:
    """PYTHONPATH with our folder first and the user's behind it."""
    others = environ.get("PYTHONPATH", "")
    return f"{SITE}{os.pathsep}{others}" if others else str(SITE)


def wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process, if it trains, is to be recorded: not one that a recorded process has started."""
    if not (environ.get(ATTACH_VARIABLE) and environ.get(RUN_DIR_VARIABLE)):
        return False
    return environ.get(OWNER_VARIABLE, str(os.getpid())) == str(os.getpid()) and collecting(environ)
