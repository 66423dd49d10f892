"""Matching a log pattern grows with the line: nobody can stop the triage with one."""

from __future__ import annotations

import subprocess
import sys

MOST_SECONDS = 120  # of CPU for all of them: 4 are used, and one pattern took 340 where three repeats met

MATCHES = """
import resource
from diag.hang.model import Line, Speaker
from diag.hang.classes import PATTERNS
resource.setrlimit(resource.RLIMIT_CPU, ({limit}, {limit}))
for _, name, pattern in PATTERNS:
    print(name, flush=True)
    for anchor in pattern.anchors:
        half = anchor[: len(anchor) // 2]
        for text in (anchor, half, "x " + anchor, anchor + ": 1", f"[{{anchor}}", f"{{anchor}}<1>"):
            for behind in ("", " ", "[", "1, "):
                line = (anchor + (text + behind) * (4000 // len(text + behind) + 1))[:4000]
                pattern.match(Line("path", 1, line, line, Speaker()))
"""


def test_a_long_line_of_what_a_pattern_looks_for() -> None:
    code = MATCHES.format(limit=MOST_SECONDS)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    name = found.stdout.split()[-1]
    assert found.returncode == 0, found.stderr[-500:] or f"more than {MOST_SECONDS} s when it came to {name}"
