"""NCCL Inspector's files, by how they begin; ``inspector`` reads them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from diag.collectors.layout import RunLayout, is_folder
from diag.collectors.reading import open_regular, walk
from diag.packed import GZIP
from diag.rundir.policy import RUN_READING
from diag.traces.text_stream import exists, is_remote, may_be_trace

from .inspector_head import begins_inspector


def alone(paths: Sequence[Path | str]) -> list[Path]:
    """The files of NCCL Inspector at or below the paths, recognised by their beginning; none if there is a run
    directory or any other file that may be a trace, as those contain more."""
    inspector_files: list[Path] = []
    for path in map(str, paths):
        if is_remote(path) or not exists(path) or RunLayout(Path(path)).is_run():
            return []
        for file in walk(path) if is_folder(path) else [path]:
            if is_inspector(file):
                inspector_files.append(Path(file))
            elif may_be_trace(file):
                return []
    return inspector_files


def is_inspector(path: str, run: Path | None = None) -> bool:
    try:
        with open_regular(path, run) as file:
            head = file.read(RUN_READING.inspector_head_bytes)
            if head.startswith(GZIP):
                head = zlib.decompressobj(wbits=31).decompress(
                    head, RUN_READING.inspector_head_bytes
                )  # also of a file that ends early
    except (OSError, zlib.error):
        return False
    return begins_inspector(head)
