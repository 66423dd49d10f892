"""A run directory that grows as a training of two ranks writes it, without the training."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from diag.collectors.layout import RunLayout
from tests.app.runs import write_run

_WRITTEN_S = 2.0  # a collector keeps the steps of about two seconds in memory


@contextlib.contextmanager
def growing(root: Path, steps_per_s: float, before: int, most: int) -> Iterator[Path]:
    """A run of two ranks with ``before`` steps, whose further ones are written while the context is open."""
    layout = RunLayout(write_run(root, ranks=2, steps=most, slow_data_ms={1: 10}))
    manifest = json.loads(layout.manifest.read_text())
    layout.manifest.write_text(json.dumps({**manifest, "exit_code": None, "trainer": {"steps": most}}))
    files = [file for rank in layout.ranks().values() for file in (rank.collectives, rank.steps)]
    lines = {file: file.read_text().splitlines(keepends=True) for file in files}
    for file in files:
        file.write_text("".join(lines[file][:before]))
    ended = threading.Event()

    def write() -> None:
        written, begin = before, time.monotonic()
        while not ended.wait(_WRITTEN_S):
            until = min(most, before + int((time.monotonic() - begin) * steps_per_s))
            for file in files:
                with file.open("a") as end:
                    end.write("".join(lines[file][written:until]))
            written = until

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield root
    finally:
        ended.set()
        writer.join()
