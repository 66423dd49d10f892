"""Says of a build that is no release which it is: 0.1.0+20261128043330.g0dbc62fc1a2b. All else is in pyproject.toml.

pip takes two wheels with one version for the same, and installs no second one. The time of the commit comes first, so
that a later build is a higher version. Without git, or outside of its own checkout, nothing is added: an sdist keeps in
setup.cfg what was.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent


def git(*arguments: str) -> str:
    """What git prints; "" where it fails or is not there."""
    command = ["git", "-C", str(HERE), *arguments]
    environment = {**os.environ, "TZ": "UTC"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def build() -> str:
    """The local part of the version, with its plus; "" for a release: a clean checkout of the version's tag."""
    top = git("rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != HERE:
        return ""
    # The second has the names of new files.
    changes = git("diff", "--no-ext-diff", "HEAD") + git("status", "--porcelain")
    release = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    if not changes and f"v{release}" in git("tag", "--points-at", "HEAD").split():
        return ""
    commit = git("log", "-1", "--abbrev=12", "--format=%cd.g%h", "--date=format-local:%Y%m%d%H%M%S")
    changed = f".changed{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else ""
    return f"+{commit}{changed}" if commit else ""


setup(options={"egg_info": {"tag_build": tag}} if (tag := build()) else {})
