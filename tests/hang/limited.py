"""``python -m tests.hang.limited``: ``diag`` with bounded memory. An input that needs more has got its way."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from diag.cli.main import main

MEMORY = 3 << 30  # address space, beyond what libraries take
USED = "DIAG_TEST_USED"  # a file for the CPU seconds and the peak memory in bytes, of this process and those it started


def used() -> str:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return f"{sum(one.ru_utime + one.ru_stime for one in both)} {max(one.ru_maxrss for one in both) * 1024}"


if __name__ == "__main__":
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    try:
        main()
    finally:
        if USED in os.environ:
            Path(os.environ[USED]).write_text(used())
