"""``python -m tests.hang.limited``: ``diag`` with bounded memory. An input that needs more has got its way."""

from __future__ import annotations

import resource
from pathlib import Path

from diag.cli.main import main

MEMORY = 3 << 30  # address space, beyond what libraries take

mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
main()
