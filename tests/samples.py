"""The sample runs, analysed once in a process: that takes 0.12 s of CPU, and two dozen files of tests look at them."""

from __future__ import annotations

from functools import cache

from diag.api import Result, open_run
from diag.serve.server import SAMPLES

NAMES = sorted(path.parent.name for path in SAMPLES.glob("*/manifest.json"))


@cache
def opened_sample(name: str) -> Result:
    """What tests share, and only read. A test that changes a threshold or patches a function opens its own."""
    return open_run(SAMPLES / name)
